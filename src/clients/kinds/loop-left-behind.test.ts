import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Mounter } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createRunProgram } from '../mounter/run-program.ts';
import { createLoopClient, type LoopClient } from './loop.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

const clock = systemClock();
const run = createRunProgram(clock);

/** A container that ran Stowage has ended; its devices and mounts still exist and are in use. */
describe.skipIf(lacks('root', 'mount', 'loop', 'ext4'))('loop devices of a mount namespace that is gone', () => {
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
  /** Finds devices by the file itself: the path of such a device is not valid in this namespace. Other devices are not queried. */
  const devicesOn = (image: string): readonly string[] => {
    const { dev, ino } = statSync(image);
    const sameNameDevices = readdirSync('/sys/block')
      .filter((name) => existsSync(`/sys/block/${name}/loop/backing_file`))
      .map((name) => `/dev/${name}`)
      .filter((device) => basename(backingPath(device)) === basename(image));
    const isOnImage = (device: string): boolean => {
      const args = ['--noheadings', '--output', 'BACK-INO,BACK-MAJ:MIN', device];
      const [inode, numbers = ''] = execFileSync('losetup', args).toString().trim().split(/\s+/);
      const [major = 0, minor = 0] = numbers.split(':').map(Number);
      return Number(inode) === ino && major === dev >> 8 && minor === (dev & 0xff);
    };
    return sameNameDevices.filter(isOnImage);
  };
  const backingPath = (device: string): string =>
    readFileSync(`/sys/block/${device.replace('/dev/', '')}/loop/backing_file`, 'utf8').trim();
  /** Attaches the image in a namespace that then ends. Returns the device. */
  const attachInEndedNamespace = (image: string): string =>
    execFileSync('unshare', [...slaveMounts, 'losetup', '--find', '--show', image])
      .toString()
      .trim();

  beforeEach(() => {
    scratch = createScratchFolder();
    // When the namespace ends, its copy of this mount is gone, and with it the beginning of the paths.
    execFileSync('mount', ['--bind', scratch.folder, scratch.folder]);
    // With shared propagation, mounts in the folder would appear twice: also in the folder below the bind mount.
    execFileSync('mount', ['--make-private', scratch.folder]);
    mounter = createLinuxMounter({ clock, run, forbiddenFolders: () => [], storeRoots: () => [scratchPath('store')] });
    client = createLoopClient({ mounter, run, clock });
    for (const name of ['store', 'stage']) mkdirSync(scratchPath(name));
  });
  afterEach(() => {
    const images = existsSync(scratchPath('store'))
      ? readdirSync(scratchPath('store')).filter((name) => name.endsWith('.img'))
      : [];
    // Mounts in the scratch folder end with the folder's own mount.
    for (const device of images.flatMap((name) => devicesOn(scratchPath(`store/${name}`))))
      execFileSync('losetup', ['--detach', device]);
    scratch[Symbol.dispose]();
  });

  test('a mounted file system is recognized, grown and unmounted', async () => {
    const volume = source(scratch.image('store/v.img', 8, 'ext4'), 'ext4');
    const device = attachInEndedNamespace(volume.path);
    execFileSync('mount', [device, scratchPath('stage')]);
    writeFileSync(scratchPath('stage/file'), 'kept');
    expect(backingPath(device)).toBe('/store/v.img');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(readFileSync(scratchPath('stage/file'), 'utf8')).toBe('kept');
    expect(devicesOn(volume.path)).toEqual([device]);
    expect(await client.mountsOf(volume, targetAt(scratchPath('stage')), scratch.scope)).toEqual([
      scratchPath('stage'),
    ]);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([devicesOn(volume.path), existsSync(scratchPath('stage'))]).toEqual([[], false]);
  });

  test('the device of a block volume is reused and then detached', async () => {
    const volume = source(scratch.image('store/v.img', 4), undefined);
    writeFileSync(scratchPath('block'), '');
    const device = attachInEndedNamespace(volume.path);
    execFileSync('mount', ['--bind', device, scratchPath('block')]);
    expect(backingPath(device)).toBe('/store/v.img');
    await client.stage(volume, targetAt(scratchPath('block')), scratch.scope);
    expect(devicesOn(volume.path)).toEqual([device]);
    expect(statSync(scratchPath('block')).rdev).toBe(statSync(device).rdev);
    await client.unstage(volume, targetAt(scratchPath('block')), scratch.scope);
    expect([devicesOn(volume.path), existsSync(scratchPath('block'))]).toEqual([[], false]);
  });

  test('unused devices are reaped', async () => {
    mkdirSync(scratchPath('store/.stowage/deleting'), { recursive: true });
    const images = ['store/v.img', 'store/.stowage/deleting/w.img'].map((name) => scratch.image(name, 4));
    const other = scratch.image('v.img', 4);
    const [ownDevices, others] = [images.map(attachInEndedNamespace), [attachInEndedNamespace(other)]];
    expect(ownDevices.map(backingPath)).toEqual(['/store/v.img', '/store/.stowage/deleting/w.img']);
    try {
      const freed = await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope);
      expect(freed.toSorted()).toEqual(ownDevices.toSorted());
      expect([images.flatMap(devicesOn), devicesOn(other)]).toEqual([[], others]);
    } finally {
      for (const device of [...images, other].flatMap(devicesOn)) execFileSync('losetup', ['--detach', device]);
    }
  });

  test("devices of deleted images are reaped only if Stowage moved the image aside on the store's disk", async () => {
    for (const name of ['store/.stowage/deleting', 'other/.stowage/deleting'])
      mkdirSync(scratchPath(name), { recursive: true });
    execFileSync('mount', ['-t', 'tmpfs', 'none', scratchPath('other')]);
    mkdirSync(scratchPath('other/.stowage/deleting'), { recursive: true });
    const name = `.stowage/deleting/${newVolumeId()}.img`;
    const [ownDevice = '', ...others] = [
      `store/${name}`,
      'store/.stowage/deleting/x.img',
      'v.img',
      `other/${name}`,
    ].map((path) => {
      const image = scratch.image(path, 4);
      const device = attachInEndedNamespace(image);
      rmSync(image);
      return device;
    });
    try {
      expect(backingPath(ownDevice)).toBe(`/store/${name} (deleted)`);
      expect(await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope)).toEqual([ownDevice]);
      expect(others.map((device) => backingPath(device).endsWith('.img (deleted)'))).toEqual([true, true, true]);
    } finally {
      for (const device of [ownDevice, ...others])
        if (existsSync(`/sys/block/${basename(device)}/loop`)) execFileSync('losetup', ['--detach', device]);
    }
  });

  test('a device with the same path in another namespace is left alone', async () => {
    const volume = source(scratch.image('store/v.img', 4), undefined);
    mkdirSync(scratchPath('elsewhere/store'), { recursive: true });
    const otherImage = scratch.image('elsewhere/store/v.img', 4);
    // In the other namespace, the other folder is mounted at the path of our store.
    const script = 'mount --bind "$1" "$2"; losetup --find --show "$3"; exec sleep 1000';
    const args = [
      ...slaveMounts,
      'sh',
      '-ec',
      script,
      'sh',
      scratchPath('elsewhere/store'),
      scratchPath('store'),
      volume.path,
    ];
    const otherProcess = spawn('unshare', args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const [output] = (await once(otherProcess.stdout, 'data')) as [Buffer];
    const device = output.toString().trim();
    try {
      expect([backingPath(device), devicesOn(otherImage)]).toEqual([volume.path, [device]]);
      expect(await client.mountsOf(volume, targetAt(scratchPath('stage')), scratch.scope)).toEqual([]);
      expect(await mounter.reap(scratchPath('mounts'), new Set(), scratch.scope)).toEqual([]);
      writeFileSync(scratchPath('block'), '');
      await client.stage(volume, targetAt(scratchPath('block')), scratch.scope);
      await client.unstage(volume, targetAt(scratchPath('block')), scratch.scope);
      expect([devicesOn(otherImage), devicesOn(volume.path)]).toEqual([[device], []]);
    } finally {
      otherProcess.kill('SIGKILL');
      execFileSync('losetup', ['--detach', device]);
    }
  });
});
