import { truncateSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder, type ScratchFolder } from '#testing/scratch-folder.ts';
import { parseSuperblock, readSuperblock } from './superblock.ts';

function ext4(blockShift: number): Buffer {
  const head = Buffer.alloc(2048);
  const superblock = head.subarray(1024);
  superblock.writeUInt16LE(0xef53, 0x38);
  superblock.writeUInt32LE(blockShift, 0x18);
  superblock.writeUInt32LE(7, 0x4);
  superblock.writeUInt32LE(0x80, 0x60);
  superblock.writeUInt32LE(1, 0x150);
  return head;
}

describe('a superblock', () => {
  test('is not found in bytes without one', () => {
    expect(parseSuperblock(Buffer.alloc(2048))).toBeUndefined();
  });

  test('reads the number of blocks in two halves if there are more than 2^32', () => {
    expect(parseSuperblock(ext4(2))).toMatchObject({ kind: 'ext4', blocks: 2n ** 32n + 7n, blockBytes: 4096n });
  });

  test('is rejected if its block size is invalid', () => {
    expect(parseSuperblock(ext4(7))).toBeUndefined();
    expect(parseSuperblock(ext4(2 ** 32 - 1))).toBeUndefined();
    for (const bytes of [0, 256, 4095, 131_072]) {
      const head = Buffer.alloc(2048);
      head.write('XFSB');
      head.writeUInt32BE(bytes, 4);
      expect(parseSuperblock(head)).toBeUndefined();
    }
  });
});

describe.skipIf(lacks('linux', 'xfs', 'ext4'))('a fresh image', () => {
  let ground: ScratchFolder;
  beforeEach(() => {
    ground = createScratchFolder();
  });
  afterEach(() => ground[Symbol.dispose]());

  test.each(['xfs', 'ext4'] as const)('%s: its blocks fill the file', async (kind) => {
    const found = await readSuperblock(ground.image('v.img', 310, kind));
    if (found === undefined) throw new Error('no file system');
    expect(found.kind).toBe(kind);
    expect(found.blocks * found.blockBytes).toBe(310n * 2n ** 20n);
    expect(found.kind === 'xfs' || found.clean).toBe(true);
  });

  test('has no superblock if it is truncated before the end of it', async () => {
    const image = ground.image('v.img', 310, 'xfs');
    truncateSync(image, 100);
    expect(await readSuperblock(image)).toBeUndefined();
  });
});
