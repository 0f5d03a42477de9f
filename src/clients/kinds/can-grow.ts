import { minExt4GroupBlocks, minXfsGroupBlocks, type Superblock } from '#base/superblock.ts';

/** Whether a file of `bytes` bytes has room that its file system, of `blocks` blocks, could grow into. */
export function canGrow(superblock: Superblock, bytes: number, blocks = superblock.blocks): boolean {
  const { blockBytes, groupBlocks } = superblock;
  const unusedBlocks = BigInt(bytes) / blockBytes - blocks;
  if (unusedBlocks <= 0n) return false;
  const hasWholeGroups = groupBlocks > 0n && (blocks - firstBlock(superblock)) % groupBlocks === 0n;
  return !hasWholeGroups || unusedBlocks >= minGroupBlocks(superblock);
}

const firstBlock = (superblock: Superblock): bigint => (superblock.kind === 'ext4' ? superblock.firstBlock : 0n);

/** An ext4 group also needs two bitmap blocks. */
const minGroupBlocks = (superblock: Superblock): bigint =>
  superblock.kind === 'ext4' ? 2n + superblock.inodeTableBlocks + minExt4GroupBlocks : minXfsGroupBlocks;
