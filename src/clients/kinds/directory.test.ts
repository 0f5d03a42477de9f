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
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { readMountTable } from '../mounter/mountinfo.ts';
import { createRun } from '../mounter/run-program.ts';
import { createUnableMounter } from '../mounter/unable-mounter.ts';
import { createDirectoryClient } from './directory.ts';

const clock = systemClock();
const run = createRun(clock);
const mounter = createLinuxMounter({ clock, run, forbidden: () => [], storeRoots: () => [] });

describe.skipIf(needs('root', 'mount'))('the directory client', () => {
  let ground: ScratchFolder;
  let client: Client<'directory'>;
  let source: Extract<Source, { kind: 'directory' }>;
  const at = (name: string): string => join(ground.folder, name);

  beforeEach(() => {
    ground = createScratchFolder();
    client = createDirectoryClient({ mounter });
    source = { kind: 'directory', node: 'here' as NodeName, path: at('volume') };
    mkdirSync(at('volume'));
    writeFileSync(join(at('volume'), 'file'), '');
  });
  afterEach(() => ground[Symbol.dispose]());

  test('stages and unstages, each twice', async () => {
    for (let n = 0; n < 2; n++) await client.stage(source, targetAt(at('stage')), ground.scope);
    expect(readdirSync(at('stage'))).toEqual(['file']);
    expect(ground.mounts()).toEqual([at('stage')]);
    await client.grow?.(source, targetAt(at('stage')), ground.scope);
    for (let n = 0; n < 2; n++) await client.unstage(source, targetAt(at('stage')), ground.scope);
    expect(ground.mounts()).toEqual([]);
    expect(existsSync(at('stage'))).toBe(false);
    expect(readdirSync(at('volume'))).toEqual(['file']);
  });

  test('continues after a crash, in both directions', async () => {
    mkdirSync(at('stage'));
    await client.stage(source, targetAt(at('stage')), ground.scope);
    await mounter.unmount(at('stage'), ground.scope);
    await client.unstage(source, targetAt(at('stage')), ground.scope);
    expect(existsSync(at('stage'))).toBe(false);
  });

  test("denies set-uid programs and devices that a container's root left, at the stage and at its binds", async () => {
    execFileSync('mknod', [join(at('volume'), 'device'), 'c', '1', '3']);
    mkdirSync(at('target'));
    // A crash can happen between the bind and its flags.
    mkdirSync(at('stage'));
    await run('mount', ['-o', 'bind', '--', at('volume'), at('stage')], ground.scope);
    expect(readFileSync(join(at('stage'), 'device'), 'utf8')).toBe('');
    await client.stage(source, targetAt(at('stage')), ground.scope);
    await mounter.bind(at('stage'), at('target'), { readOnly: false }, ground.scope);
    for (const place of [at('stage'), at('target')]) {
      expect((await readMountTable()).at(place)?.options).toEqual(expect.arrayContaining(['rw', 'nosuid', 'nodev']));
      expect(() => readFileSync(join(place, 'device'))).toThrow('EACCES');
    }
  });

  test('does not follow a symbolic link in place of the data', async () => {
    renameSync(at('volume'), at('elsewhere'));
    symlinkSync('elsewhere', at('volume'));
    await expect(client.stage(source, targetAt(at('stage')), ground.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'data-wrong-kind',
      message: `the volume's data were replaced: ${at('volume')} is not a folder`,
    });
    rmSync(at('volume'));
    await expect(client.stage(source, targetAt(at('stage')), ground.scope)).rejects.toMatchObject({
      code: 'not-found',
      reason: 'data-missing',
    });
    expect(ground.mounts()).toEqual([]);
  });

  test('refuses a stage with another volume', async () => {
    mkdirSync(at('other'));
    await client.stage({ ...source, path: at('other') }, targetAt(at('stage')), ground.scope);
    await expect(client.stage(source, targetAt(at('stage')), ground.scope)).rejects.toMatchObject({ code: 'conflict' });
  });

  test('stages data on a read-only file system read-only', async () => {
    mkdirSync(at('ro'));
    await mounter.bind(ground.folder, at('ro'), { readOnly: true }, ground.scope);
    const frozen = { ...source, path: join(at('ro'), 'volume') };
    for (let n = 0; n < 2; n++) await client.stage(frozen, targetAt(at('stage')), ground.scope);
    expect(() => writeFileSync(join(at('stage'), 'x'), '')).toThrow('EROFS');
  });

  test('reports an error where mounting is impossible', async () => {
    const unable = createUnableMounter({ why: 'no', action: 'Do.' }, async () => []);
    await expect(
      createDirectoryClient({ mounter: unable }).stage(source, targetAt(at('stage')), ground.scope),
    ).rejects.toMatchObject({
      reason: 'mount-unable',
    });
    expect(existsSync(at('stage'))).toBe(false);
  });
});
