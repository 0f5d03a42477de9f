import { describe, expect, test } from 'vitest';
import { type Ext4Superblock, readSuperblock, type XfsSuperblock } from '#base/superblock.ts';
import { lacks } from '#testbed/lacks.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { canGrow } from './can-grow.ts';

const groups = { blockBytes: 4096n, blocks: 1000n, groupBlocks: 500n };
const xfs: XfsSuperblock = { kind: 'xfs', ...groups, logBlocks: 0n };
const ext4: Ext4Superblock = {
  ...groups,
  kind: 'ext4',
  firstBlock: 1n,
  inodeTableBlocks: 12n,
  journalBytes: 0n,
  descriptorBytes: 32n,
  reservedDescriptorBlocks: 0n,
  clean: true,
};

describe('a file system', () => {
  test('can grow if a whole block is free after it', () => {
    expect(canGrow({ ...xfs, blocks: 999n }, 999 * 4096)).toBe(false);
    expect(canGrow({ ...xfs, blocks: 999n }, 1000 * 4096 - 1)).toBe(false);
    expect(canGrow({ ...xfs, blocks: 999n }, 1000 * 4096)).toBe(true);
    expect(canGrow({ ...xfs, blocks: 999n }, 500 * 4096)).toBe(false);
  });

  test('cannot grow by less than the minimum of a group if its groups are full', () => {
    expect(canGrow(xfs, 1063 * 4096)).toBe(false);
    expect(canGrow(xfs, 1064 * 4096)).toBe(true);
    expect(canGrow({ ...ext4, blocks: 1001n }, 1064 * 4096)).toBe(false);
    expect(canGrow({ ...ext4, blocks: 1001n }, 1065 * 4096)).toBe(true);
  });

  test.skipIf(lacks('linux', 'xfs', 'ext4')).each(['xfs', 'ext4'] as const)(
    'that is new (%s) grows with its file',
    async (kind) => {
      using scratch = createScratchFolder();
      const superblock = await readSuperblock(scratch.image('v.img', 310, kind));
      if (superblock === undefined) throw new Error('no file system');
      expect(canGrow(superblock, 310 * 2 ** 20)).toBe(false);
      expect(canGrow(superblock, 400 * 2 ** 20)).toBe(true);
    },
  );
});
