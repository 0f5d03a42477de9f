import { truncateSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { createGround, type Ground } from '#testing/ground.ts';
import { canGrow, ext4Geometry, type Geometry, readGeometry, xfsGeometry } from './superblock.ts';

const plain: Geometry = {
  blockBytes: 4096,
  blocks: 1000,
  groupBlocks: 500,
  firstBlock: 0,
  leastGroupBlocks: 64,
  logBlocks: 0,
  clean: true,
};

describe('a file system', () => {
  test('can grow when a whole block is free behind it', () => {
    expect(canGrow({ ...plain, blocks: 999 }, 999 * 4096)).toBe(false);
    expect(canGrow({ ...plain, blocks: 999 }, 1000 * 4096 - 1)).toBe(false);
    expect(canGrow({ ...plain, blocks: 999 }, 1000 * 4096)).toBe(true);
    expect(canGrow({ ...plain, blocks: 999 }, 500 * 4096)).toBe(false);
  });

  test('whose groups are full cannot grow by less than a group must have', () => {
    expect(canGrow(plain, 1063 * 4096)).toBe(false);
    expect(canGrow(plain, 1064 * 4096)).toBe(true);
    expect(canGrow({ ...plain, firstBlock: 1, blocks: 1001 }, 1064 * 4096)).toBe(false);
  });

  test('is not seen in bytes that hold none', () => {
    expect(xfsGeometry(Buffer.alloc(4096))).toBeUndefined();
    expect(ext4Geometry(Buffer.alloc(3072))).toBeUndefined();
  });

  test('with more than 2^32 blocks has its size in two halves', () => {
    const superblock = Buffer.alloc(1024);
    superblock.writeUInt16LE(0xef53, 0x38);
    superblock.writeUInt32LE(2, 0x18);
    superblock.writeUInt32LE(7, 0x4);
    superblock.writeUInt32LE(0x80, 0x60);
    superblock.writeUInt32LE(1, 0x150);
    expect(ext4Geometry(superblock)).toMatchObject({ blocks: 2 ** 32 + 7, blockBytes: 4096 });
  });
});

describe.skipIf(needs('linux', 'xfs', 'ext4'))('a fresh image', () => {
  let ground: Ground;
  beforeEach(() => {
    ground = createGround();
  });
  afterEach(() => ground[Symbol.dispose]());

  test.each(['xfs', 'ext4'] as const)('%s: fills the file, and can grow with it', async (kind) => {
    const image = ground.image('v.img', 310, kind);
    const geometry = await readGeometry(image, kind);
    if (geometry === undefined) throw new Error('no file system');
    expect(geometry.blocks * geometry.blockBytes).toBe(310 * 2 ** 20);
    expect(geometry.clean).toBe(true);
    expect(canGrow(geometry, 310 * 2 ** 20)).toBe(false);
    expect(canGrow(geometry, 400 * 2 ** 20)).toBe(true);
    expect(await readGeometry(image, kind === 'xfs' ? 'ext4' : 'xfs')).toBeUndefined();
  });

  test('cut off before its superblock ends, it has none', async () => {
    const image = ground.image('v.img', 310, 'xfs');
    truncateSync(image, 100);
    expect(await readGeometry(image, 'xfs')).toBeUndefined();
  });
});
