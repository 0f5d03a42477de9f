import { execFileSync } from 'node:child_process';
import {
  copyFile,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  statfs,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { mountImage } from '#testing/loop-mount.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { readGeometry } from './geometry.ts';
import { runTool } from './mkfs.ts';

const MiB = 1024n * 1024n;
const GiB = 1024n * MiB;

const spec = (name: string, bytes: bigint | undefined, more: Partial<VolumeSpec> = {}): VolumeSpec =>
  volumeSpec(name, { bytes, ...more });

/** Mounts the image, runs `work`, and returns the size that `df` shows. */
async function sizeOfMounted(
  image: string,
  work: (at: string) => Promise<void> = async () => undefined,
): Promise<bigint> {
  const mountPoint = await mkdtemp(join(tmpdir(), 'stowage-mount-'));
  mountImage(image, mountPoint);
  try {
    await work(mountPoint);
    const { blocks, bsize } = await statfs(mountPoint, { bigint: true });
    return blocks * bsize;
  } finally {
    execFileSync('umount', [mountPoint]);
    await rm(mountPoint, { recursive: true });
  }
}

let storeUnderTest: LocalStoreUnderTest;
const open = async (options: Readonly<Record<string, string>> = {}): Promise<void> => {
  storeUnderTest = await localStore({ layout: 'image', ...options });
};
afterEach(async () => {
  await storeUnderTest[Symbol.asyncDispose]();
});
const create = (name: string, bytes: bigint, more: Partial<VolumeSpec> = {}): Promise<Volume> =>
  storeUnderTest.store.create(spec(name, bytes, more), scope);

async function reasonOf(work: Promise<unknown>): Promise<string> {
  const thrown = await work.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  return thrown instanceof StowageError ? `${thrown.code} ${thrown.reason}` : `not a StowageError: ${String(thrown)}`;
}

describe.skipIf(lacks('mount', 'loop', 'xfs', 'ext4'))('a mounted image', () => {
  test.each([
    ['xfs', 300n * MiB],
    ['xfs', 500n * MiB + 4096n],
    ['xfs', GiB],
    ['xfs', 37n * GiB],
  ])('of %s with %d bytes shows exactly that size', async (filesystem, bytes) => {
    await open();
    const made = await create('a', bytes);
    expect(await storeUnderTest.store.source(made, scope)).toEqual({
      kind: 'loop',
      node: 'node-1',
      path: storeUnderTest.at('a.img'),
      filesystem,
    });
    expect(await sizeOfMounted(storeUnderTest.at('a.img'))).toBe(bytes);
    expect((await readGeometry(storeUnderTest.at('a.img')))?.usableBytes).toBe(bytes);
  });

  test.each([16n, 20n, 64n, 100n, 127n, 128n, 130n, 256n, 299n, 1024n, 5n * 1024n, 40n * 1024n])(
    'of ext4 with %d MiB shows that size, and at most one percent more',
    async (size) => {
      await open({ filesystem: 'ext4' });
      const bytes = size * MiB;
      const made = await create('a', bytes);
      expect(await storeUnderTest.store.source(made, scope)).toMatchObject({ filesystem: 'ext4' });
      const shownBytes = await sizeOfMounted(storeUnderTest.at('a.img'));
      expect(shownBytes).toBeGreaterThanOrEqual(bytes);
      expect(shownBytes).toBeLessThanOrEqual(bytes + bytes / 100n + MiB / 4n);
      expect((await readGeometry(storeUnderTest.at('a.img')))?.usableBytes).toBe(shownBytes);
    },
  );

  test.each([
    [GiB, 2n * GiB],
    [300n * MiB, 301n * MiB],
    // The last allocation group would be too small to be used: the file must be larger.
    [GiB, 69632n * 4096n * 5n - 64n * MiB + 4096n],
  ])('of xfs with %d bytes grows to %d while mounted', async (before, after) => {
    await open();
    const made = await create('a', before);
    const shownBytes = await sizeOfMounted(storeUnderTest.at('a.img'), async (at) => {
      await writeFile(join(at, 'file'), 'kept');
      await storeUnderTest.store.expand(made, after, scope);
      const device = execFileSync('findmnt', ['--noheadings', '--output', 'SOURCE', at], { encoding: 'utf8' }).trim();
      execFileSync('losetup', ['-c', device]);
      execFileSync('xfs_growfs', [at], { stdio: 'ignore' });
    });
    expect(shownBytes).toBeGreaterThanOrEqual(after);
    expect(shownBytes).toBeLessThanOrEqual(after + MiB / 4n);
  });

  test.each([
    [100n, 110n],
    [100n, 300n],
    [16n, 1024n],
    [200n, 9n * 1024n],
  ])('of ext4 with %d MiB grows to %d MiB', async (before, after) => {
    await open({ filesystem: 'ext4' });
    const made = await create('a', before * MiB);
    await storeUnderTest.store.expand(made, after * MiB, scope);
    execFileSync('e2fsck', ['-f', '-p', storeUnderTest.at('a.img')], { stdio: 'ignore' });
    execFileSync('resize2fs', [storeUnderTest.at('a.img')], { stdio: 'ignore' });
    const shownBytes = await sizeOfMounted(storeUnderTest.at('a.img'));
    expect(shownBytes).toBeGreaterThanOrEqual(after * MiB);
    expect(shownBytes).toBeLessThanOrEqual(((after * MiB) / 100n) * 102n);
  });

  test.each([
    ['xfs', 300n * MiB],
    ['ext4', 20n * MiB],
  ])("of %s has the owner and mode of the store's options", async (filesystem, bytes) => {
    await open({ filesystem, uid: '1234', gid: '70000', mode: '2770' });
    await create('a', bytes);
    await sizeOfMounted(storeUnderTest.at('a.img'), async (at) => {
      const { uid, gid, mode } = await stat(at);
      expect([uid, gid, mode & 0o7777]).toEqual([1234, 70000, 0o2770]);
    });
  });
});

describe.skipIf(lacks('xfs', 'ext4'))('an image store', () => {
  beforeEach(() => open());

  test('gives a block volume exactly the requested size, and no file system', async () => {
    const made = await create('a', GiB, { access: 'block' });
    expect((await stat(storeUnderTest.at('a.img'))).size).toBe(Number(GiB));
    expect(await storeUnderTest.store.source(made, scope)).toMatchObject({ kind: 'loop', filesystem: undefined });
    await storeUnderTest.store.expand(made, 2n * GiB, scope);
    expect((await stat(storeUnderTest.at('a.img'))).size).toBe(Number(2n * GiB));
    expect((await storeUnderTest.store.usage(made, scope)).bytes).toBeLessThan(MiB);
  });

  test('takes no more space than the file system has written', async () => {
    const made = await create('a', 100n * GiB);
    expect((await storeUnderTest.store.usage(made, scope)).bytes).toBeLessThan(70n * MiB);
  });

  test('refuses other sizes, with the possible range in the error', async () => {
    expect(await reasonOf(create('a', 16n * MiB - 1n))).toBe('out-of-range size-out-of-range');
    expect(await reasonOf(create('a', 1024n ** 5n + 1n))).toBe('out-of-range size-out-of-range');
    expect(await reasonOf(create('a', -1n))).toBe('out-of-range size-out-of-range');
    expect(await reasonOf(storeUnderTest.store.create(spec('a', undefined), scope))).toBe('invalid size-needed');
    await expect(create('a', 1n)).rejects.toThrow(
      'a volume of 1 bytes cannot be created in store test: the size must be 16 MiB (16777216 bytes) to 1 PiB (1125899906842624 bytes)',
    );
    expect(await readdir(storeUnderTest.root)).toEqual(['.stowage']);
  });

  test('leaves nothing of a volume that is too large for the underlying file system', async () => {
    const result = await create('a', 1024n ** 5n, { access: 'block' }).catch((cause: unknown) => cause);
    // Some underlying file systems can hold such a file.
    if (result instanceof StowageError) {
      expect([result.code, result.reason]).toEqual(['out-of-range', 'file-too-large']);
      expect(await readdir(storeUnderTest.root)).toEqual(['.stowage']);
      expect(await readdir(storeUnderTest.at('.stowage', 'tmp'))).toEqual([]);
    }
  });

  test('leaves nothing of a creation that is cancelled while the file system is made', async () => {
    const stop = new AbortController();
    await create('a', GiB);
    const work = storeUnderTest.store.create(spec('b', GiB), { ...scope, signal: stop.signal });
    setImmediate(() => stop.abort());
    expect(await reasonOf(work)).toBe('canceled canceled');
    expect((await readdir(storeUnderTest.root)).toSorted()).toEqual(['.stowage', 'a.img', 'a.meta']);
    expect(await readdir(storeUnderTest.at('.stowage', 'tmp'))).toEqual([]);
  });

  test('names the package of a missing tool, and reports the output of a failing tool', async () => {
    await expect(runTool('xfs', 'mkfs.nowhere', [], systemClock(), scope)).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'tool-missing',
      message: 'mkfs.nowhere is not installed, so Stowage cannot create an xfs file system',
      action: 'Install the package xfsprogs on this machine.',
    });
    await expect(runTool('ext4', 'mkfs.ext4', ['-q', '/nowhere'], systemClock(), scope)).rejects.toMatchObject({
      code: 'internal',
      reason: 'mkfs-failed',
      message: expect.stringMatching(/^mkfs\.ext4 failed: .*\/nowhere/),
    });
  });

  test('adopts images with a file system, and no others', async () => {
    const made = await create('a', 20n * MiB);
    await copyFile(storeUnderTest.at('a.img'), storeUnderTest.at('copy.img'));
    await writeFile(storeUnderTest.at('raw.img'), '');
    await truncate(storeUnderTest.at('raw.img'), 1_000_000);
    await symlink(storeUnderTest.at('a.img'), storeUnderTest.at('link.img'));
    await mkdir(storeUnderTest.at('dir.img'));
    await writeFile(storeUnderTest.at('notes.txt'), '');
    const found = (await storeUnderTest.store.adoption.adoptable(scope)).toSorted((a, b) => (a.name < b.name ? -1 : 1));
    expect(found).toEqual([
      { name: 'copy' },
      { name: 'dir.img', reason: 'it is not a plain file' },
      { name: 'link.img', reason: 'it is a symbolic link' },
      { name: 'notes.txt', reason: 'it is not a .img file' },
      { name: 'raw.img', reason: 'it holds neither an xfs nor an ext4 file system' },
    ]);
    const adopted = await storeUnderTest.store.adoption.adopt(volumeName('copy'), spec('copy', undefined), scope);
    expect(adopted.bytes).toBeGreaterThanOrEqual(made.bytes ?? 0n);
    expect(await reasonOf(storeUnderTest.store.adoption.adopt(volumeName('raw'), spec('raw', undefined), scope))).toBe(
      'conflict not-adoptable',
    );
  });

  test('does not let a damaged superblock decide how large a file becomes', async () => {
    const made = await create('a', 20n * MiB);
    const damagedSuperblock = Buffer.alloc(4096);
    damagedSuperblock.write('XFSB');
    damagedSuperblock.writeUInt32BE(4096, 4);
    damagedSuperblock.writeBigUInt64BE(2n ** 40n, 8);
    damagedSuperblock.writeBigUInt64BE(1n, 48);
    damagedSuperblock.writeUInt32BE(64, 84);
    damagedSuperblock.writeUInt32BE(2 ** 31, 96);
    await writeFile(storeUnderTest.at('a.img'), damagedSuperblock, { flag: 'r+' });
    const before = (await stat(storeUnderTest.at('a.img'))).size;
    expect(await reasonOf(storeUnderTest.store.expand(made, 40n * MiB, scope))).toBe('conflict volume-data-unusable');
    expect((await stat(storeUnderTest.at('a.img'))).size).toBe(before);
  });
});

describe.skipIf(lacks('ext4'))('an image', () => {
  beforeEach(() => open({ filesystem: 'ext4' }));
  const isEmpty = async (made: Volume): Promise<boolean> => (await storeUnderTest.store.usage(made, scope)).empty;

  test.each(['filesystem', 'block'] as const)(
    'is empty if no user has mounted it (%s), also after other changes',
    async (access) => {
      const made = await create('a', 16n * MiB, { access });
      await storeUnderTest.store.label(made, { tier: 'gold' }, scope);
      await storeUnderTest.store.expand(made, 20n * MiB, scope);
      const renamed = await storeUnderTest.store.rename(made, volumeName('b'), scope);
      expect(await isEmpty(renamed)).toBe(true);
      await storeUnderTest.reopen();
      expect(await isEmpty(renamed)).toBe(true);
    },
  );

  test.each(['filesystem', 'block'] as const)(
    'is not empty if a user has mounted it (%s), also after a restart',
    async (access) => {
      const made = await create('a', 16n * MiB, { access });
      await storeUnderTest.store.markUsed?.(made, scope);
      expect(await isEmpty(made)).toBe(false);
      await storeUnderTest.reopen();
      await storeUnderTest.store.label(made, { tier: 'gold' }, scope);
      expect(await isEmpty(made)).toBe(false);
    },
  );

  test('is not empty if its record does not say that it is unused', async () => {
    const [early, released] = [await create('a', 16n * MiB), await create('b', 16n * MiB)];
    const record = JSON.parse(await readFile(storeUnderTest.at('a.meta'), 'utf8'));
    await writeFile(storeUnderTest.at('a.meta'), `${JSON.stringify({ ...record, unused: undefined })}\n`);
    expect(await isEmpty(early)).toBe(false);
    await storeUnderTest.store.adoption.release(released, scope);
    expect(await isEmpty(await storeUnderTest.store.adoption.adopt(released.name, spec('b', undefined), scope))).toBe(
      false,
    );
    await copyFile(storeUnderTest.at('b.img'), storeUnderTest.at('c.img'));
    expect(await isEmpty(await storeUnderTest.store.adoption.adopt(volumeName('c'), spec('c', undefined), scope))).toBe(
      false,
    );
  });
});
