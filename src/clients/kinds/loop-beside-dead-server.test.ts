import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statfsSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { stoppedLoopDevice } from '#testing/stopped-loop-device.ts';
import { listAttachedLoops } from '../mounter/attached-loops.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createRunProgram } from '../mounter/run-program.ts';
import { createLoopClient, type LoopClient } from './loop.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

const clock = systemClock();
const run = createRunProgram(clock);

let scratch: ScratchFolder;
let mounter: Mounter;
let client: LoopClient;
const scratchPath = (name: string): string => join(scratch.folder, name);
const source = (path: string, filesystem: LoopSource['filesystem']): LoopSource => ({
  kind: 'loop',
  node: 'here' as NodeName,
  path,
  filesystem,
});
const mib = (path: string): number => {
  const { blocks, bsize } = statfsSync(path);
  return (blocks * bsize) / 2 ** 20;
};

beforeEach(() => {
  scratch = createScratchFolder();
  mounter = createLinuxMounter({ clock, run, forbiddenFolders: () => [], storeRoots: () => [scratch.folder] });
  client = createLoopClient({ mounter, run, clock });
});
afterEach(() => scratch[Symbol.dispose]());

describe.skipIf(lacks('root', 'mount', 'loop', 'fuse', 'xfs', 'ext4'))(
  "beside another program's loop device whose FUSE server is stopped",
  { timeout: 120_000 },
  () => {
    test.each([false, true])(
      'an xfs volume mounts, grows online and unmounts (device mounted: %s)',
      async (mounted) => {
        const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
        await using stoppedDevice = await stoppedLoopDevice(scratch, { mounted });
        await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
        writeFileSync(scratchPath('stage/file'), 'kept');
        const sizeBefore = mib(scratchPath('stage'));
        truncateSync(volume.path, 600 * 2 ** 20);
        await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
        expect(mib(scratchPath('stage')) - sizeBefore).toBe(300);
        await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
        expect(scratch.loops()).toEqual([stoppedDevice.node]);
        expect(existsSync(scratchPath('stage'))).toBe(false);
      },
    );

    test('an ext4 volume mounts, and grows while it is unmounted', async () => {
      const volume = source(scratch.image('v.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(scratch, { mounted: true });
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      writeFileSync(scratchPath('stage/file'), 'kept');
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      truncateSync(volume.path, 150 * 2 ** 20);
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(mib(scratchPath('stage'))).toBeGreaterThan(120);
      expect(readFileSync(scratchPath('stage/file'), 'utf8')).toBe('kept');
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(scratch.loops()).toEqual([other.node]);
    });

    test('a block volume mounts, grows and unmounts', async () => {
      const volume = source(scratch.image('v.img', 4), undefined);
      await using other = await stoppedLoopDevice(scratch);
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(statSync(scratchPath('stage')).isBlockDevice()).toBe(true);
      truncateSync(volume.path, 8 * 2 ** 20);
      await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
      const [volumeDevice = ''] = scratch.loops().filter((node) => node !== other.node);
      expect(readFileSync(`/sys/block/${volumeDevice.replace('/dev/', '')}/size`, 'utf8').trim()).toBe(String(2 ** 14));
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(scratch.loops()).toEqual([other.node]);
    });

    test('a volume whose image has the same name as the stopped device’s file mounts even if the FUSE mount is not visible', async () => {
      const volume = source(scratch.image('same-name.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(scratch, { name: 'same-name.img' });
      execFileSync('umount', ['--lazy', scratchPath('stopped/mnt')]);
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect((await listAttachedLoops()).filter(({ file }) => file === volume.path)).toEqual([]);
      expect((await listAttachedLoops()).map(({ node }) => node)).toContain(other.node);
    });

    test('a volume whose image has the same name as the stopped device’s file mounts, is reported in use, and unmounts', async () => {
      const volume = source(scratch.image('same-name.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(scratch, { name: 'same-name.img' });
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(await client.mountsOf(volume, targetAt(scratchPath('stage')), scratch.scope)).toEqual([
        scratchPath('stage'),
      ]);
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(await client.mountsOf(volume, targetAt(scratchPath('stage')), scratch.scope)).toEqual([]);
      expect(await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope)).toEqual([]);
      expect(scratch.loops()).toEqual([other.node]);
    });
  },
);
