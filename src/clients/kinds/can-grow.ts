import { leastExt4Room, leastXfsGroup, type Superblock } from '#base/superblock.ts';

/** Whether a file of that size holds room that a file system of `blocks` blocks does not use yet, and could. */
export function canGrow(superblock: Superblock, bytes: number, blocks = superblock.blocks): boolean {
  const { blockBytes, groupBlocks } = superblock;
  const rest = BigInt(bytes) / blockBytes - blocks;
  if (rest <= 0n) return false;
  const wholeGroups = groupBlocks > 0n && (blocks - firstBlock(superblock)) % groupBlocks === 0n;
  return !wholeGroups || rest >= leastGroup(superblock);
}

const firstBlock = (superblock: Superblock): bigint => (superblock.kind === 'ext4' ? superblock.firstBlock : 0n);

/** A group of ext4 also has two bitmaps. */
const leastGroup = (superblock: Superblock): bigint =>
  superblock.kind === 'ext4' ? 2n + superblock.inodeTableBlocks + leastExt4Room : leastXfsGroup;
