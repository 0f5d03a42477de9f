import { execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import type { Client } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { readMountTable } from '../mounter/mountinfo.ts';
import { createRunProgram } from '../mounter/run-program.ts';
import { createUnableMounter } from '../mounter/unable-mounter.ts';
import { createDirectoryClient } from './directory.ts';

const clock = systemClock();
const run = createRunProgram(clock);
const mounter = createLinuxMounter({ clock, run, forbiddenFolders: () => [], storeRoots: () => [] });

describe.skipIf(lacks('root', 'mount'))('the directory client', () => {
  let scratch: ScratchFolder;
  let client: Client<'directory'>;
  let source: Extract<Source, { kind: 'directory' }>;
  const scratchPath = (name: string): string => join(scratch.folder, name);

  beforeEach(() => {
    scratch = createScratchFolder();
    client = createDirectoryClient({ mounter });
    source = { kind: 'directory', node: 'here' as NodeName, path: scratchPath('volume') };
    mkdirSync(scratchPath('volume'));
    writeFileSync(join(scratchPath('volume'), 'file'), '');
  });
  afterEach(() => scratch[Symbol.dispose]());

  test('stages and unstages, each twice', async () => {
    for (let n = 0; n < 2; n++) await client.stage(source, targetAt(scratchPath('stage')), scratch.scope);
    expect(readdirSync(scratchPath('stage'))).toEqual(['file']);
    expect(scratch.mounts()).toEqual([scratchPath('stage')]);
    await client.grow?.(source, targetAt(scratchPath('stage')), scratch.scope);
    for (let n = 0; n < 2; n++) await client.unstage(source, targetAt(scratchPath('stage')), scratch.scope);
    expect(scratch.mounts()).toEqual([]);
    expect(existsSync(scratchPath('stage'))).toBe(false);
    expect(readdirSync(scratchPath('volume'))).toEqual(['file']);
  });

  test('continues after a crash, in both directions', async () => {
    mkdirSync(scratchPath('stage'));
    await client.stage(source, targetAt(scratchPath('stage')), scratch.scope);
    await mounter.unmount(scratchPath('stage'), scratch.scope);
    await client.unstage(source, targetAt(scratchPath('stage')), scratch.scope);
    expect(existsSync(scratchPath('stage'))).toBe(false);
  });

  test("denies set-uid programs and devices that a container's root left, at the stage and at its binds", async () => {
    execFileSync('mknod', [join(scratchPath('volume'), 'device'), 'c', '1', '3']);
    mkdirSync(scratchPath('target'));
    // A crash can happen between the bind and its flags.
    mkdirSync(scratchPath('stage'));
    await run('mount', ['-o', 'bind', '--', scratchPath('volume'), scratchPath('stage')], scratch.scope);
    expect(readFileSync(join(scratchPath('stage'), 'device'), 'utf8')).toBe('');
    await client.stage(source, targetAt(scratchPath('stage')), scratch.scope);
    await mounter.bind(scratchPath('stage'), scratchPath('target'), { readOnly: false }, scratch.scope);
    for (const mountPoint of [scratchPath('stage'), scratchPath('target')]) {
      expect((await readMountTable()).mountAt(mountPoint)?.options).toEqual(
        expect.arrayContaining(['rw', 'nosuid', 'nodev']),
      );
      expect(() => readFileSync(join(mountPoint, 'device'))).toThrow('EACCES');
    }
  });

  test('does not follow a symbolic link in place of the data', async () => {
    renameSync(scratchPath('volume'), scratchPath('elsewhere'));
    symlinkSync('elsewhere', scratchPath('volume'));
    await expect(client.stage(source, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'data-wrong-kind',
      message: `the volume's data were replaced: ${scratchPath('volume')} is not a folder`,
    });
    rmSync(scratchPath('volume'));
    await expect(client.stage(source, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'not-found',
      reason: 'data-missing',
    });
    expect(scratch.mounts()).toEqual([]);
  });

  test('refuses a stage with another volume', async () => {
    mkdirSync(scratchPath('other'));
    await client.stage({ ...source, path: scratchPath('other') }, targetAt(scratchPath('stage')), scratch.scope);
    await expect(client.stage(source, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
    });
  });

  test('stages data on a read-only file system read-only', async () => {
    mkdirSync(scratchPath('ro'));
    await mounter.bind(scratch.folder, scratchPath('ro'), { readOnly: true }, scratch.scope);
    const frozen = { ...source, path: join(scratchPath('ro'), 'volume') };
    for (let n = 0; n < 2; n++) await client.stage(frozen, targetAt(scratchPath('stage')), scratch.scope);
    expect(() => writeFileSync(join(scratchPath('stage'), 'x'), '')).toThrow('EROFS');
  });

  test('reports an error where mounting is impossible', async () => {
    const unable = createUnableMounter({ why: 'no', action: 'Do.' }, async () => []);
    await expect(
      createDirectoryClient({ mounter: unable }).stage(source, targetAt(scratchPath('stage')), scratch.scope),
    ).rejects.toMatchObject({
      reason: 'mount-unable',
    });
    expect(existsSync(scratchPath('stage'))).toBe(false);
  });
});
