import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Mounter } from '#core/ports.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { needs } from '#testbed/needs.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createRun } from '../mounter/run-program.ts';
import { createLoopClient, type LoopClient } from './loop.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

const clock = systemClock();
const run = createRun(clock);

/** A container that ran Stowage has ended; its devices and mounts still exist and are in use. */
describe.skipIf(needs('root', 'mount', 'loop', 'ext4'))('loop devices of a mount namespace that is gone', () => {
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
  /** Finds devices by the file itself: the path of such a device is not valid in this namespace. Other devices are not queried. */
  const devicesOn = (image: string): readonly string[] => {
    const { dev, ino } = statSync(image);
    const named = readdirSync('/sys/block')
      .filter((name) => existsSync(`/sys/block/${name}/loop/backing_file`))
      .map((name) => `/dev/${name}`)
      .filter((device) => basename(pathOf(device)) === basename(image));
    const isOnImage = (device: string): boolean => {
      const words = ['--noheadings', '--output', 'BACK-INO,BACK-MAJ:MIN', device];
      const [inode, numbers = ''] = execFileSync('losetup', words).toString().trim().split(/\s+/);
      const [major = 0, minor = 0] = numbers.split(':').map(Number);
      return Number(inode) === ino && major === dev >> 8 && minor === (dev & 0xff);
    };
    return named.filter(isOnImage);
  };
  const pathOf = (device: string): string =>
    readFileSync(`/sys/block/${device.replace('/dev/', '')}/loop/backing_file`, 'utf8').trim();
  /** Returns the device. */
  const attachedBefore = (image: string): string =>
    execFileSync('unshare', [...slaveMounts, 'losetup', '--find', '--show', image])
      .toString()
      .trim();

  beforeEach(() => {
    ground = createScratchFolder();
    // When the namespace ends, its copy of this mount is gone, and with it the beginning of the paths.
    execFileSync('mount', ['--bind', ground.folder, ground.folder]);
    // With shared propagation, mounts in it would appear twice: in the folder below it, too.
    execFileSync('mount', ['--make-private', ground.folder]);
    mounter = createLinuxMounter({ clock, run, forbidden: () => [], storeRoots: () => [at('store')] });
    client = createLoopClient({ mounter, run, clock });
    for (const name of ['store', 'stage']) mkdirSync(at(name));
  });
  afterEach(() => {
    const images = existsSync(at('store')) ? readdirSync(at('store')).filter((name) => name.endsWith('.img')) : [];
    // Mounts inside it end with it.
    for (const device of images.flatMap((name) => devicesOn(at(`store/${name}`))))
      execFileSync('losetup', ['--detach', device]);
    ground[Symbol.dispose]();
  });

  test('a file system is found mounted, grown and unmounted', async () => {
    const volume = source(ground.image('store/v.img', 8, 'ext4'), 'ext4');
    const device = attachedBefore(volume.path);
    execFileSync('mount', [device, at('stage')]);
    writeFileSync(at('stage/file'), 'kept');
    expect(pathOf(device)).toBe('/store/v.img');
    await client.stage(volume, targetAt(at('stage')), ground.scope);
    await client.grow(volume, targetAt(at('stage')), ground.scope);
    expect(readFileSync(at('stage/file'), 'utf8')).toBe('kept');
    expect(devicesOn(volume.path)).toEqual([device]);
    expect(await client.mountsOf(volume, targetAt(at('stage')), ground.scope)).toEqual([at('stage')]);
    await client.unstage(volume, targetAt(at('stage')), ground.scope);
    expect([devicesOn(volume.path), existsSync(at('stage'))]).toEqual([[], false]);
  });

  test('a block device stays the only one of its file, and is detached', async () => {
    const volume = source(ground.image('store/v.img', 4), undefined);
    writeFileSync(at('block'), '');
    const device = attachedBefore(volume.path);
    execFileSync('mount', ['--bind', device, at('block')]);
    expect(pathOf(device)).toBe('/store/v.img');
    await client.stage(volume, targetAt(at('block')), ground.scope);
    expect(devicesOn(volume.path)).toEqual([device]);
    expect(statSync(at('block')).rdev).toBe(statSync(device).rdev);
    await client.unstage(volume, targetAt(at('block')), ground.scope);
    expect([devicesOn(volume.path), existsSync(at('block'))]).toEqual([[], false]);
  });

  test('unused devices are reaped', async () => {
    mkdirSync(at('store/.stowage/deleting'), { recursive: true });
    const images = ['store/v.img', 'store/.stowage/deleting/w.img'].map((name) => ground.image(name, 4));
    const other = ground.image('v.img', 4);
    const [mine, others] = [images.map(attachedBefore), [attachedBefore(other)]];
    expect(mine.map(pathOf)).toEqual(['/store/v.img', '/store/.stowage/deleting/w.img']);
    try {
      const freed = await mounter.reap(at('mounts'), new Set(), ground.scope);
      expect(freed.toSorted()).toEqual(mine.toSorted());
      expect([images.flatMap(devicesOn), devicesOn(other)]).toEqual([[], others]);
    } finally {
      for (const device of [...images, other].flatMap(devicesOn)) execFileSync('losetup', ['--detach', device]);
    }
  });

  test("devices of deleted images are reaped only if Stowage moved the image aside on the store's disk", async () => {
    for (const name of ['store/.stowage/deleting', 'other/.stowage/deleting']) mkdirSync(at(name), { recursive: true });
    execFileSync('mount', ['-t', 'tmpfs', 'none', at('other')]);
    mkdirSync(at('other/.stowage/deleting'), { recursive: true });
    const name = `.stowage/deleting/${newVolumeId()}.img`;
    const [mine = '', ...others] = [`store/${name}`, 'store/.stowage/deleting/x.img', 'v.img', `other/${name}`].map(
      (path) => {
        const image = ground.image(path, 4);
        const device = attachedBefore(image);
        rmSync(image);
        return device;
      },
    );
    try {
      expect(pathOf(mine)).toBe(`/store/${name} (deleted)`);
      expect(await mounter.reap(at('mounts'), new Set(), ground.scope)).toEqual([mine]);
      expect(others.map((device) => pathOf(device).endsWith('.img (deleted)'))).toEqual([true, true, true]);
    } finally {
      for (const device of [mine, ...others])
        if (existsSync(`/sys/block/${basename(device)}/loop`)) execFileSync('losetup', ['--detach', device]);
    }
  });

  test('a device with the same path in another namespace is not ours', async () => {
    const ours = source(ground.image('store/v.img', 4), undefined);
    mkdirSync(at('elsewhere/store'), { recursive: true });
    const theirs = ground.image('elsewhere/store/v.img', 4);
    // In that live namespace, its folder is at the path that ours has here.
    const script = 'mount --bind "$1" "$2"; losetup --find --show "$3"; exec sleep 1000';
    const words = [...slaveMounts, 'sh', '-ec', script, 'sh', at('elsewhere/store'), at('store'), ours.path];
    const they = spawn('unshare', words, { stdio: ['ignore', 'pipe', 'inherit'] });
    const [said] = (await once(they.stdout, 'data')) as [Buffer];
    const device = said.toString().trim();
    try {
      expect([pathOf(device), devicesOn(theirs)]).toEqual([ours.path, [device]]);
      expect(await client.mountsOf(ours, targetAt(at('stage')), ground.scope)).toEqual([]);
      expect(await mounter.reap(at('mounts'), new Set(), ground.scope)).toEqual([]);
      writeFileSync(at('block'), '');
      await client.stage(ours, targetAt(at('block')), ground.scope);
      await client.unstage(ours, targetAt(at('block')), ground.scope);
      expect([devicesOn(theirs), devicesOn(ours.path)]).toEqual([[device], []]);
    } finally {
      they.kill('SIGKILL');
      execFileSync('losetup', ['--detach', device]);
    }
  });
});
