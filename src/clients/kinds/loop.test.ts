import { execFileSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Source } from '#core/model.ts';
import { lacks } from '#testbed/lacks.ts';
import { attachImage } from '#testing/loop-mount.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { targetAt } from '#testing/staging-target.ts';
import { createLinuxMounter } from '../mounter/linux-mounter.ts';
import { createRunProgram, type RunProgram } from '../mounter/run-program.ts';
import type { Tool } from '../mounter/tools.ts';
import { type GrowCalls, growCalls } from './grow-calls.ts';
import { createLoopClient, type LoopClient } from './loop.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

const clock = systemClock();
const runProgram = createRunProgram(clock);
const ranTools: Tool[] = [];
const run: RunProgram = (tool, ...rest) => {
  ranTools.push(tool);
  return runProgram(tool, ...rest);
};
const grownPaths: string[] = [];
const recordingGrowCalls: GrowCalls = {
  xfs: async (mountPoint, bytes) => {
    grownPaths.push(mountPoint);
    await growCalls.xfs(mountPoint, bytes);
  },
  ext4: async (mountPoint, bytes, blockBytes) => {
    grownPaths.push(mountPoint);
    await growCalls.ext4(mountPoint, bytes, blockBytes);
  },
};
const mounter = createLinuxMounter({ clock, run, forbiddenFolders: () => [], storeRoots: () => [] });

let scratch: ScratchFolder;
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
const zero = (path: string, from: number, length: number): void => {
  const file = openSync(path, 'r+');
  writeSync(file, Buffer.alloc(length), 0, length, from);
  closeSync(file);
};
/** Keeps the file open until disposed of. */
const openFile = (path: string): Disposable => {
  const file = openSync(path, 'r');
  return { [Symbol.dispose]: () => closeSync(file) };
};

beforeEach(() => {
  scratch = createScratchFolder();
  client = createLoopClient({ mounter, run, clock, growCalls: recordingGrowCalls });
  ranTools.length = 0;
  grownPaths.length = 0;
});
afterEach(() => scratch[Symbol.dispose]());

describe.skipIf(lacks('root', 'mount', 'loop', 'xfs', 'ext4'))('the loop client, file systems', () => {
  test.each(['xfs', 'ext4'] as const)('%s: stages and unstages, each twice, and keeps the data', async (kind) => {
    const volume = source(scratch.image('v.img', 300, kind), kind);
    for (let n = 0; n < 2; n++) await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    writeFileSync(join(scratchPath('stage'), 'file'), 'kept');
    expect(scratch.mounts()).toEqual([scratchPath('stage')]);
    expect(scratch.loops()).toHaveLength(1);
    const options = readFileSync('/proc/self/mountinfo', 'utf8')
      .split('\n')
      .find((line) => line.includes(` ${scratchPath('stage')} `));
    expect(options).toMatch(/nosuid,nodev/);
    for (let n = 0; n < 2; n++) await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], [], false]);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(readFileSync(join(scratchPath('stage'), 'file'), 'utf8')).toBe('kept');
    expect(grownPaths).toEqual([]);
    expect(ranTools).not.toContain('resize2fs');
  });

  test('uses direct I/O on the image', async () => {
    await client.stage(
      source(scratch.image('v.img', 300, 'xfs'), 'xfs'),
      targetAt(scratchPath('stage')),
      scratch.scope,
    );
    const [loop = ''] = scratch.loops();
    expect(readFileSync(`/sys/block/${basename(loop)}/loop/dio`, 'utf8').trim()).toBe('1');
  });

  test('leaves no loop device, even if another program unmounts the volume', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    execFileSync('umount', [scratchPath('stage')]);
    expect(scratch.loops()).toEqual([]);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(existsSync(scratchPath('stage'))).toBe(false);
  });

  test('attaches ten volumes at once to devices of their own', async () => {
    const volumes = Array.from({ length: 10 }, (_, n) => source(scratch.image(`v${n}.img`, 20, 'ext4'), 'ext4'));
    await Promise.all(
      volumes.map((volume, n) => client.stage(volume, targetAt(scratchPath(`stage${n}`)), scratch.scope)),
    );
    expect(scratch.mounts()).toHaveLength(10);
    expect(new Set(scratch.loops()).size).toBe(10);
    for (const [n] of volumes.entries()) writeFileSync(join(scratchPath(`stage${n}`), `mine-${n}`), '');
    await Promise.all(
      volumes.map((volume, n) => client.unstage(volume, targetAt(scratchPath(`stage${n}`)), scratch.scope)),
    );
    expect([scratch.mounts(), scratch.loops()]).toEqual([[], []]);
  });

  test.each(['ext4', undefined] as const)('stages one volume (%s) once for ten concurrent calls', async (kind) => {
    const volume = source(scratch.image('v.img', 20, kind), kind);
    await Promise.all(
      Array.from({ length: 10 }, () => client.stage(volume, targetAt(scratchPath('stage')), scratch.scope)),
    );
    expect([scratch.mounts().length, scratch.loops().length]).toEqual([1, 1]);
  });

  test('grows a mounted xfs, once', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    const sizeBefore = mib(scratchPath('stage'));
    truncateSync(volume.path, 600 * 2 ** 20);
    await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(mib(scratchPath('stage')) - sizeBefore).toBe(300);
    await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(grownPaths).toEqual([scratchPath('stage')]);
  });

  test('grows an xfs file system at the next stage if its image grew while unmounted', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    truncateSync(volume.path, 600 * 2 ** 20);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(mib(scratchPath('stage'))).toBeGreaterThan(500);
  });

  test('completes at the next stage a growth that a crash interrupted', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    truncateSync(volume.path, 600 * 2 ** 20);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(mib(scratchPath('stage'))).toBeGreaterThan(500);
  });

  test('grows ext4 at the next stage at the latest, and keeps its data', async () => {
    const volume = source(scratch.image('v.img', 50, 'ext4'), 'ext4');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    writeFileSync(join(scratchPath('stage'), 'file'), 'kept');
    truncateSync(volume.path, 150 * 2 ** 20);
    // The kernel requires CAP_SYS_RESOURCE; without it the error says what to do.
    const growResult = await client
      .grow(volume, targetAt(scratchPath('stage')), scratch.scope)
      .catch((cause: unknown) => cause);
    if (growResult !== undefined) {
      expect(growResult).toMatchObject({
        code: 'unsupported',
        reason: 'grow-needs-unmount',
        action: 'Unmount the volume everywhere, then mount it again: the mount grows the file system.',
      });
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect(mib(scratchPath('stage'))).toBeLessThan(60);
    }
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(mib(scratchPath('stage'))).toBeGreaterThan(120);
    expect(readFileSync(join(scratchPath('stage'), 'file'), 'utf8')).toBe('kept');
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    ranTools.length = 0;
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(ranTools.filter((tool) => tool === 'e2fsck' || tool === 'resize2fs')).toEqual([]);
  });

  test('waits for another program that works on an ext4 image before it changes the image', async () => {
    const volume = source(scratch.image('v.img', 50, 'ext4'), 'ext4');
    truncateSync(volume.path, 150 * 2 ** 20);
    const otherProgram = openFile(volume.path);
    const logged: string[] = [];
    const log = { ...scratch.scope.log, debug: (message: string) => void logged.push(message) };
    const staging = client.stage(volume, targetAt(scratchPath('stage')), { ...scratch.scope, log });
    await expect.poll(() => logged).toEqual(['waiting for the image', 'waiting for the image']);
    expect(ranTools).toEqual([]);
    otherProgram[Symbol.dispose]();
    await staging;
    expect(mib(scratchPath('stage'))).toBeGreaterThan(120);
  });

  test.each([
    ['xfs', 'xfs_repair', 0],
    ['xfs', 'xfs_repair', 512],
    ['ext4', 'e2fsck -f', 0],
    ['ext4', 'e2fsck -f', 2048],
  ] as const)('reports a damaged %s with the repair command (%s, from byte %i)', async (kind, repair, from) => {
    const image = scratch.image('v.img', 300, kind);
    zero(image, from, 128 * 1024);
    await expect(
      client.stage(source(image, kind), targetAt(scratchPath('stage')), scratch.scope),
    ).rejects.toMatchObject({
      code: 'conflict',
      reason: 'filesystem-damaged',
      message: `the ${kind} file system in ${image} is damaged and cannot be mounted`,
      action: `Copy the image, then repair it: ${repair} ${image}`,
    });
    expect([scratch.mounts(), scratch.loops()]).toEqual([[], []]);
    await client.unstage(source(image, kind), targetAt(scratchPath('stage')), scratch.scope);
    expect(existsSync(scratchPath('stage'))).toBe(false);
  });

  test('keeps a volume staged while it is in use, and names the users', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    using _open = openFile(scratchPath('stage'));
    await expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'in-use',
      message: expect.stringContaining(`${process.pid} (`),
    });
    expect(scratch.loops()).toHaveLength(1);
  });

  test('keeps a volume staged while a bind of it exists, and names the bind', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    mkdirSync(scratchPath('target'));
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    await mounter.bind(scratchPath('stage'), scratchPath('target'), { readOnly: true }, scratch.scope);
    await expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'in-use',
      message: `${volume.path} cannot be detached: it is still mounted at ${scratchPath('target')}`,
    });
    await mounter.unmount(scratchPath('target'), scratch.scope);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(scratch.loops()).toEqual([]);
  });

  test("reports a volume as in use by a copy of the stages' folder that does not receive the unmount, and names the copy", async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    for (const name of ['stages', 'copy']) mkdirSync(scratchPath(name));
    execFileSync('mount', ['--bind', scratchPath('stages'), scratchPath('stages')]);
    await client.stage(volume, targetAt(scratchPath('stages/v')), scratch.scope);
    execFileSync('mount', ['--rbind', scratchPath('stages'), scratchPath('copy')]);
    execFileSync('mount', ['--make-rprivate', scratchPath('copy')]);
    const unstage = (): Promise<void> => client.unstage(volume, targetAt(scratchPath('stages/v')), scratch.scope);
    for (let n = 0; n < 2; n++)
      await expect(unstage()).rejects.toMatchObject({
        code: 'in-use',
        message: `${volume.path} cannot be detached: it is still mounted at ${scratchPath('copy/v')}`,
      });
    execFileSync('umount', ['--recursive', scratchPath('copy')]);
    await unstage();
    expect(scratch.loops()).toEqual([]);
  });

  test('reports a moved image as in use while its device is mounted elsewhere', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    mkdirSync(scratchPath('target'));
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    await mounter.bind(scratchPath('stage'), scratchPath('target'), { readOnly: false }, scratch.scope);
    renameSync(volume.path, scratchPath('moved.img'));
    await expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'in-use',
    });
    await mounter.unmount(scratchPath('target'), scratch.scope);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], [], false]);
  });

  test('unstages a deleted image', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    rmSync(volume.path);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], [], false]);
  });

  test('does not take a new image for a deleted one of the same name', async () => {
    const volume = source(scratch.image('v.img', 300, 'xfs'), 'xfs');
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    rmSync(volume.path);
    scratch.image('v.img', 300, 'xfs');
    await expect(client.stage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'mount-occupied',
    });
  });

  test('uses one device when several processes stage one image at once', async () => {
    for (const kind of ['ext4', 'xfs'] as const) {
      const volume = source(scratch.image(`${kind}.img`, 300, kind), kind);
      // Each client has locks of its own, as two processes do.
      const clients = [0, 1, 2, 3].map(() => createLoopClient({ mounter, run: createRunProgram(clock), clock }));
      await Promise.all(
        clients.map((one, n) => one.stage(volume, targetAt(scratchPath(`${kind}${n}`)), scratch.scope)),
      );
      expect(scratch.loops(volume.path)).toHaveLength(1);
    }
  });

  test('does not follow a symbolic link in place of the image', async () => {
    const image = scratch.image('v.img', 300, 'xfs');
    renameSync(image, scratchPath('elsewhere.img'));
    symlinkSync('elsewhere.img', image);
    await expect(
      client.stage(source(image, 'xfs'), targetAt(scratchPath('stage')), scratch.scope),
    ).rejects.toMatchObject({
      reason: 'data-wrong-kind',
    });
  });
});

describe.skipIf(lacks('root', 'mount', 'loop'))('the loop client, block devices', () => {
  test('stages and unstages, each twice, and writes to the image', async () => {
    const volume = source(scratch.image('v.img', 4), undefined);
    for (let n = 0; n < 2; n++) await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(statSync(scratchPath('stage')).isBlockDevice()).toBe(true);
    expect(scratch.loops()).toHaveLength(1);
    execFileSync('dd', [`of=${scratchPath('stage')}`, 'bs=4096', 'count=1', 'conv=fsync'], {
      input: 'word'.repeat(1024),
      stdio: 'pipe',
    });
    for (let n = 0; n < 2; n++) await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], [], false]);
    expect(readFileSync(volume.path).toString('latin1', 0, 8)).toBe('wordword');
  });

  test('stages a device read-only, and refuses to stage it for writing at the same time', async () => {
    const volume = source(scratch.image('v.img', 4), undefined);
    const readOnly = { ...volume, readOnly: true };
    // A crash left the device attached for writing.
    attachImage(volume.path);
    for (let n = 0; n < 2; n++) await client.stage(readOnly, targetAt(scratchPath('stage')), scratch.scope);
    const write = (): unknown =>
      execFileSync('dd', [`of=${scratchPath('stage')}`, 'bs=4096', 'count=1', 'conv=fsync'], {
        input: 'word',
        stdio: 'pipe',
      });
    expect(write).toThrow(/not permitted|Read-only/);
    await expect(client.stage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'conflict',
      reason: 'block-mode',
    });
    await client.unstage(readOnly, targetAt(scratchPath('stage')), scratch.scope);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    write();
    await expect(client.stage(readOnly, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      reason: 'block-mode',
    });
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(readFileSync(volume.path).toString('latin1', 0, 4)).toBe('word');
  });

  test('continues after a crash', async () => {
    const volume = source(scratch.image('v.img', 4), undefined);
    attachImage(volume.path);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect(scratch.loops()).toHaveLength(1);
    execFileSync('umount', [scratchPath('stage')]);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], false]);
  });

  test('does not expose a device that was detached and reused for another file', async () => {
    const [volume, other] = [source(scratch.image('v.img', 4), undefined), scratch.image('other.img', 8)];
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    const [loop = ''] = scratch.loops();
    execFileSync('losetup', ['-d', loop]);
    execFileSync('losetup', [loop, other]);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    const [node = ''] = scratch.loops(volume.path);
    expect(node).not.toBe(loop);
    expect(statSync(scratchPath('stage')).rdev).toBe(statSync(node).rdev);
  });

  test('unstages a volume although another program has mounted a device with the same number', async () => {
    const [volume, other] = [source(scratch.image('v.img', 4), undefined), scratch.image('other.img', 50, 'ext4')];
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    const [loop = ''] = scratch.loops();
    execFileSync('losetup', ['-d', loop]);
    execFileSync('losetup', [loop, other]);
    mkdirSync(scratchPath('theirs'));
    execFileSync('mount', ['-t', 'ext4', loop, scratchPath('theirs')]);
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([
      [scratchPath('theirs')],
      [loop],
      false,
    ]);
  });

  test('grows a staged device', async () => {
    const volume = source(scratch.image('v.img', 4), undefined);
    await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    truncateSync(volume.path, 8 * 2 ** 20);
    for (let n = 0; n < 2; n++) await client.grow(volume, targetAt(scratchPath('stage')), scratch.scope);
    const [loop = ''] = scratch.loops();
    expect(readFileSync(`/sys/block/${basename(loop)}/size`, 'utf8').trim()).toBe(String((8 * 2 ** 20) / 512));
  });

  test('reports an open device as in use, and names who has it open', async () => {
    const volume = source(scratch.image('v.img', 4), undefined);
    await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
    const [loop = ''] = scratch.loops();
    const open = openFile(loop);
    await expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'in-use',
      message: expect.stringContaining(`${volume.path} is in use by process ${process.pid} (`),
    });
    await expect(client.stage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
      code: 'busy',
      reason: 'loop-detaching',
    });
    open[Symbol.dispose]();
    await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
    expect([scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], false]);
  });

  describe('whose device is used in addition to its stage', () => {
    let volume: LoopSource;
    let device: string;

    beforeEach(async () => {
      volume = source(scratch.image('v.img', 4), undefined);
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      [device = ''] = scratch.loops();
    });

    const expectStillMounted = (where: string): Promise<void> =>
      expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
        code: 'in-use',
        message: `${volume.path} cannot be detached: it is still mounted at ${where}`,
      });
    const expectReleased = async (): Promise<void> => {
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect([scratch.mounts(), scratch.loops(), existsSync(scratchPath('stage'))]).toEqual([[], [], false]);
    };

    test('is in use if another program has unmounted the stage', async () => {
      writeFileSync(scratchPath('target'), '');
      execFileSync('mount', ['--bind', device, scratchPath('target')]);
      execFileSync('umount', [scratchPath('stage')]);
      for (let n = 0; n < 2; n++) await expectStillMounted(scratchPath('target'));
      expect(scratch.loops()).toEqual([device]);
      execFileSync('umount', [scratchPath('target')]);
      await expectReleased();
    });

    test("is in use by a copy of the stages' folder that does not receive the unmount", async () => {
      for (const name of ['stages', 'copy']) mkdirSync(scratchPath(name));
      execFileSync('mount', ['--bind', scratchPath('stages'), scratchPath('stages')]);
      const otherVolume = source(scratch.image('w.img', 4), undefined);
      await client.stage(otherVolume, targetAt(scratchPath('stages/w')), scratch.scope);
      execFileSync('mount', ['--rbind', scratchPath('stages'), scratchPath('copy')]);
      execFileSync('mount', ['--make-rprivate', scratchPath('copy')]);
      const unstage = (): Promise<void> =>
        client.unstage(otherVolume, targetAt(scratchPath('stages/w')), scratch.scope);
      for (let n = 0; n < 2; n++)
        await expect(unstage()).rejects.toMatchObject({
          code: 'in-use',
          message: `${otherVolume.path} cannot be detached: it is still mounted at ${scratchPath('copy/w')}`,
        });
      expect(scratch.loops(otherVolume.path)).toHaveLength(1);
      execFileSync('umount', ['--recursive', scratchPath('copy')]);
      await unstage();
      expect(scratch.loops(otherVolume.path)).toEqual([]);
    });

    test('is detached after its file was moved', async () => {
      renameSync(volume.path, scratchPath('moved.img'));
      await expectReleased();
    });

    test('is in use after its file was moved', async () => {
      writeFileSync(scratchPath('target'), '');
      execFileSync('mount', ['--bind', device, scratchPath('target')]);
      renameSync(volume.path, scratchPath('moved.img'));
      const moved = { ...volume, path: scratchPath('moved.img') };
      for (let n = 0; n < 2; n++)
        await expect(client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope)).rejects.toMatchObject({
          code: 'in-use',
          message: `${moved.path} cannot be detached: it is still mounted at ${scratchPath('target')}`,
        });
      execFileSync('umount', [scratchPath('target')]);
      await expectReleased();
    });

    test('is in use after its file was deleted, until a new volume has its path', async () => {
      writeFileSync(scratchPath('target'), '');
      execFileSync('mount', ['--bind', device, scratchPath('target')]);
      execFileSync('umount', [scratchPath('stage')]);
      rmSync(volume.path);
      await expectStillMounted(scratchPath('target'));
      scratch.image('v.img', 4);
      await client.stage(volume, targetAt(scratchPath('stage')), scratch.scope);
      await client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      expect([scratch.mounts(), scratch.loops(volume.path), existsSync(scratchPath('stage'))]).toEqual([
        [scratchPath('target')],
        [],
        false,
      ]);
      execFileSync('umount', [scratchPath('target')]);
      execFileSync('losetup', ['--detach', device]);
    });

    test('is in use while it is open, also after its file was moved', async () => {
      const open = openFile(device);
      const unstaging = client.unstage(volume, targetAt(scratchPath('stage')), scratch.scope);
      await expect.poll(() => scratch.mounts()).toEqual([]);
      renameSync(volume.path, scratchPath('moved.img'));
      await expect(unstaging).rejects.toMatchObject({ code: 'in-use', reason: 'mount-busy' });
      open[Symbol.dispose]();
      await expect.poll(() => scratch.loops()).toEqual([]);
    });
  });

  test('attaches ten at once to devices of their own', async () => {
    const volumes = Array.from({ length: 10 }, (_, n) => source(scratch.image(`v${n}.img`, 4), undefined));
    await Promise.all(
      volumes.map((volume, n) => client.stage(volume, targetAt(scratchPath(`stage${n}`)), scratch.scope)),
    );
    expect(new Set(scratch.loops()).size).toBe(10);
    expect(new Set(volumes.map((_, n) => statSync(scratchPath(`stage${n}`)).rdev)).size).toBe(10);
    await Promise.all(
      volumes.map((volume, n) => client.unstage(volume, targetAt(scratchPath(`stage${n}`)), scratch.scope)),
    );
    expect([scratch.mounts(), scratch.loops()]).toEqual([[], []]);
  });
});
