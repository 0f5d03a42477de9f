import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { lacks } from '#testbed/lacks.ts';
import { createMounter, type MounterOptions } from './create-mounter.ts';
import { createRunProgram } from './run-program.ts';

const scope = { signal: new AbortController().signal, log: silentLog() };
const clock = systemClock();
const options: MounterOptions = {
  clock,
  run: createRunProgram(clock),
  storeRoots: () => [],
  forbiddenFolders: () => [],
};

async function withCapabilities(capEff: string): Promise<AsyncDisposable & { readonly status: string }> {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-'));
  const status = join(folder.path, 'status');
  await writeFile(status, `Name:\tnode\nCapPrm:\t000001ffffffffff\nCapEff:\t${capEff}\nCapBnd:\t000001ffffffffff\n`);
  return { status, [Symbol.asyncDispose]: () => folder.remove() };
}

describe('the chosen mounter', () => {
  test('without CAP_SYS_ADMIN refuses everything but the list, and says what is needed', async () => {
    await using processStatus = await withCapabilities('00000000a80425fb');
    const mounter = await createMounter({ ...options, platform: 'linux', status: processStatus.status });
    const refusal = {
      code: 'unsupported',
      reason: 'mount-unable',
      message: 'volumes cannot be mounted here: this process lacks CAP_SYS_ADMIN',
      action: 'Run Stowage as root; in a container, add the capability: docker run --cap-add SYS_ADMIN',
    };
    await expect(mounter.bind('/a', '/b', { readOnly: false }, scope)).rejects.toMatchObject(refusal);
    await expect(mounter.unmount('/b', scope)).rejects.toMatchObject(refusal);
    await expect(mounter.inspectTarget('/b', 'filesystem', scope)).rejects.toMatchObject(refusal);
    await expect(mounter.makeTarget('/b', 'filesystem', scope)).rejects.toMatchObject(refusal);
    await expect(mounter.removeTarget('/b', scope)).rejects.toMatchObject(refusal);
    await expect(mounter.reap('/b', new Set(), scope)).rejects.toMatchObject(refusal);
    expect(mounter.unable?.why).toBe('this process lacks CAP_SYS_ADMIN');
  });

  test.skipIf(lacks('linux'))('lists the mounts for an ordinary user, too', async () => {
    await using who = await withCapabilities('0000000000000000');
    const mounter = await createMounter({ ...options, status: who.status });
    expect((await mounter.list(scope)).some((point) => point.at === '/proc')).toBe(true);
  });

  test('can mount with CAP_SYS_ADMIN', async () => {
    await using who = await withCapabilities('0000000000200000');
    expect((await createMounter({ ...options, platform: 'linux', status: who.status })).unable).toBeUndefined();
  });

  test('cannot mount on another system than Linux, and lists nothing', async () => {
    const mounter = await createMounter({ ...options, platform: 'darwin' });
    expect(mounter.unable?.why).toBe('this is darwin, and mounting needs Linux');
    expect(await mounter.list(scope)).toEqual([]);
  });
});
