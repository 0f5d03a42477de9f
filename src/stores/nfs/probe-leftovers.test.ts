import { existsSync, mkdirSync, readdirSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import { needs } from '#testbed/needs.ts';
import { defaultPolicy } from '#testing/default-policy.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { connectScripted } from '#testing/fakes/scripted-nfs.ts';
import { ganeshaFolders } from '#testing/ganesha-folders.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import type { NfsClient } from '#wire/nfs3/index.ts';
import { createNfsStoreKind } from './kind.ts';

const minute = 60_000;
const scope = { signal: new AbortController().signal, log: silentLog() };

type Kind = ReturnType<typeof createNfsStoreKind>;

async function check(kind: Kind, uri: string): Promise<void> {
  const config = parseStoreConfig('silver', uri, 'file', new Map([[kind.scheme, kind]]));
  const found = await kind.probe?.(config, defaultPolicy, scope);
  expect(found?.steps.map(({ step, ok }) => `${step} ${ok}`).at(-1)).toBe('room true');
}

/** As a check leaves it that is killed; so long ago. */
function leave(path: string, ageMs: number, text = 'probe\n'): string {
  writeFileSync(path, text);
  const at = (Date.now() - ageMs) / 1000;
  utimesSync(path, at, at);
  return path;
}

describe.skipIf(needs('ganesha', 'root'))('on a real server, a check', () => {
  const ganesha = ganeshaFolders('leftovers');

  test('removes files of checks that were killed long ago, and nothing else', async () => {
    const { folder, uri } = ganesha.fresh();
    const { nfsPort, mountPort } = ganesha.server;
    const at = (name: string): string => join(folder, name);
    const old = 11 * minute;
    const gone = [
      leave(at('.stowage-check-0123456789ab'), old),
      // Killed before it had written anything.
      leave(at('.stowage-check-0123456789ac'), old, ''),
    ];
    leave(at('.stowage-check-0123456789ad'), 9 * minute);
    leave(at('.stowage-check-0123456789ae'), old, 'mine!\n');
    leave(at('.stowage-check-0123456789af'), old, 'probe\nand more');
    leave(at('.stowage-check-0123456789AB'), old);
    leave(at('.stowage-check-0123456789abc'), old);
    leave(at('stowage-check-0123456789ab'), old);
    mkdirSync(at('.stowage-check-0123456789b0'));
    symlinkSync(at('stowage-check-0123456789ab'), at('.stowage-check-0123456789b1'));
    utimesSync(at('.stowage-check-0123456789b0'), 1, 1);
    const before = readdirSync(folder);
    await check(
      createNfsStoreKind(),
      `${uri.replace(ganesha.server.host, `${ganesha.server.host}:${nfsPort}`)}?mountport=${mountPort}`,
    );
    expect(gone.filter((path) => existsSync(path))).toEqual([]);
    expect(readdirSync(folder)).toEqual(before.filter((name) => !gone.includes(at(name))));
  });
});

describe('the file of a check that was killed', () => {
  function stand(script: (real: NfsClient) => Partial<NfsClient> = () => ({})) {
    const ground = createScratchFolder();
    onTestFinished(() => ground[Symbol.dispose]());
    const { folder } = ground;
    const clock = createFakeClock();
    const connect = connectScripted(folder, script);
    const kind = createNfsStoreKind(clock, connect, () => connect);
    return {
      clock,
      leave: (ageMs: number) => leave(join(folder, '.stowage-check-0123456789ab'), ageMs),
      folder,
      check: () => check(kind, 'nfs://nowhere/export'),
    };
  }

  test('is removed when it is old, though not every check lists the directory', async () => {
    let listings = 0;
    const on = stand((real) => ({
      readdir: (...args) => {
        listings++;
        return real.readdir(...args);
      },
    }));
    on.leave(minute);
    await on.check();
    expect(readdirSync(on.folder)).toHaveLength(1);
    const each = listings;
    on.leave(11 * minute);
    on.clock.advance(9 * minute);
    await on.check();
    expect([readdirSync(on.folder).length, listings]).toEqual([1, each]);
    on.clock.advance(minute);
    await on.check();
    expect([readdirSync(on.folder).length, listings]).toEqual([0, 2 * each]);
  });

  test.each<readonly [string, (real: NfsClient) => Partial<NfsClient>]>([
    ['the directory cannot be listed', () => ({ readdir: () => Promise.reject(new Error('no')) })],
    ['the file cannot be read', () => ({ read: () => Promise.reject(new Error('no')) })],
  ])('stays if %s, and the check passes', async (_, script) => {
    const on = stand(script);
    on.leave(11 * minute);
    await on.check();
    expect(readdirSync(on.folder)).toHaveLength(1);
  });
});
