import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statfsSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import type { Mounter } from '#core/ports.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { stoppedLoopDevice } from '#testing/stopped-loop-device.ts';
import { attachedLoops } from '../mounter/attached-loops.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createRun } from '../mounter/run-program.ts';
import { createLoopClient, type LoopClient } from './loop.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

const clock = systemClock();
const run = createRun(clock);

let ground: ScratchFolder;
let mounter: Mounter;
let client: LoopClient;
const at = (name: string): string => join(ground.folder, name);
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
  ground = createScratchFolder();
  mounter = createLinuxMounter({ clock, run, forbidden: () => [], storeRoots: () => [ground.folder] });
  client = createLoopClient({ mounter, run, clock });
});
afterEach(() => ground[Symbol.dispose]());

describe.skipIf(needs('root', 'mount', 'loop', 'fuse', 'xfs', 'ext4'))(
  "beside another program's loop device whose FUSE server is stopped",
  { timeout: 120_000 },
  () => {
    test.each([false, true])(
      'an xfs volume mounts, grows online and unmounts (device mounted: %s)',
      async (mounted) => {
        const volume = source(ground.image('v.img', 300, 'xfs'), 'xfs');
        await using other = await stoppedLoopDevice(ground, { mounted });
        await client.stage(volume, targetAt(at('stage')), ground.scope);
        writeFileSync(at('stage/file'), 'kept');
        const before = mib(at('stage'));
        truncateSync(volume.path, 600 * 2 ** 20);
        await client.grow(volume, targetAt(at('stage')), ground.scope);
        expect(mib(at('stage')) - before).toBe(300);
        await client.unstage(volume, targetAt(at('stage')), ground.scope);
        expect(ground.loops()).toEqual([other.node]);
        expect(existsSync(at('stage'))).toBe(false);
      },
    );

    test('an ext4 volume mounts, and grows while it is unmounted', async () => {
      const volume = source(ground.image('v.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(ground, { mounted: true });
      await client.stage(volume, targetAt(at('stage')), ground.scope);
      writeFileSync(at('stage/file'), 'kept');
      await client.unstage(volume, targetAt(at('stage')), ground.scope);
      truncateSync(volume.path, 150 * 2 ** 20);
      await client.stage(volume, targetAt(at('stage')), ground.scope);
      expect(mib(at('stage'))).toBeGreaterThan(120);
      expect(readFileSync(at('stage/file'), 'utf8')).toBe('kept');
      await client.unstage(volume, targetAt(at('stage')), ground.scope);
      expect(ground.loops()).toEqual([other.node]);
    });

    test('a block volume mounts, grows and unmounts', async () => {
      const volume = source(ground.image('v.img', 4), undefined);
      await using other = await stoppedLoopDevice(ground);
      await client.stage(volume, targetAt(at('stage')), ground.scope);
      expect(statSync(at('stage')).isBlockDevice()).toBe(true);
      truncateSync(volume.path, 8 * 2 ** 20);
      await client.grow(volume, targetAt(at('stage')), ground.scope);
      const [own = ''] = ground.loops().filter((node) => node !== other.node);
      expect(readFileSync(`/sys/block/${own.replace('/dev/', '')}/size`, 'utf8').trim()).toBe(String(2 ** 14));
      await client.unstage(volume, targetAt(at('stage')), ground.scope);
      expect(ground.loops()).toEqual([other.node]);
    });

    test('a volume whose image has the same name as that file mounts even if the FUSE mount is not visible', async () => {
      const volume = source(ground.image('same-name.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(ground, { name: 'same-name.img' });
      execFileSync('umount', ['--lazy', at('stopped/mnt')]);
      await client.stage(volume, targetAt(at('stage')), ground.scope);
      await client.unstage(volume, targetAt(at('stage')), ground.scope);
      expect((await attachedLoops()).filter(({ file }) => file === volume.path)).toEqual([]);
      expect((await attachedLoops()).map(({ node }) => node)).toContain(other.node);
    });

    test('a volume whose image has the same name as that file mounts, is reported in use, and unmounts', async () => {
      const volume = source(ground.image('same-name.img', 50, 'ext4'), 'ext4');
      await using other = await stoppedLoopDevice(ground, { name: 'same-name.img' });
      await client.stage(volume, targetAt(at('stage')), ground.scope);
      expect(await client.mountsOf(volume, targetAt(at('stage')), ground.scope)).toEqual([at('stage')]);
      await client.unstage(volume, targetAt(at('stage')), ground.scope);
      expect(await client.mountsOf(volume, targetAt(at('stage')), ground.scope)).toEqual([]);
      expect(await mounter.reap(at('mounts'), new Set(), ground.scope)).toEqual([]);
      expect(ground.loops()).toEqual([other.node]);
    });
  },
);
