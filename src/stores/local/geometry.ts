import {
  type Ext4Superblock,
  minExt4GroupBlocks,
  minXfsGroupBlocks,
  readSuperblock,
  type XfsSuperblock,
} from '#base/superblock.ts';

export const MiB = 1024n * 1024n;
export const blockSize = 4096n;

/** The parameters that determine how much of an image file its file system can offer. From our own mkfs options or from a superblock. */
export type Geometry = XfsGeometry | Ext4Geometry;

export interface XfsGeometry {
  readonly filesystem: 'xfs';
  readonly block: bigint;
  /** The internal log, which statfs(2) leaves out of the total. */
  readonly logBlocks: bigint;
  /** Undefined for a new file system, whose groups are not laid out yet. */
  readonly groupBlocks: bigint | undefined;
}

export interface Ext4Geometry {
  readonly filesystem: 'ext4';
  readonly block: bigint;
  readonly journalBlocks: bigint;
  readonly groupBlocks: bigint;
  readonly inodeTableBlocks: bigint | undefined;
  readonly descriptorSize: bigint;
  /** Descriptor blocks in use and reserved, in each group that has a copy. Undefined: not laid out yet. */
  readonly descriptorBlocks: bigint | undefined;
}

export interface FoundFileSystem {
  readonly geometry: Geometry;
  /** The size that `df` shows. */
  readonly usableBytes: bigint;
}

const ceilDiv = (a: bigint, b: bigint): bigint => (a + b - 1n) / b;
const max = (a: bigint, b: bigint): bigint => (a > b ? a : b);
const min = (a: bigint, b: bigint): bigint => (a < b ? a : b);

/** The size of an image file whose file system offers `bytes`, and hardly more, so that `df` shows the requested size. */
export function fileSize(geometry: Geometry, bytes: bigint): bigint {
  const wanted = ceilDiv(bytes, geometry.block);
  const blocks = geometry.filesystem === 'xfs' ? xfsBlocks(geometry, wanted) : ext4Blocks(geometry, wanted);
  return blocks * geometry.block;
}

function xfsBlocks({ logBlocks, groupBlocks }: XfsGeometry, wanted: bigint): bigint {
  const blocks = wanted + logBlocks;
  if (groupBlocks === undefined) return blocks;
  const lastGroup = blocks % groupBlocks;
  return lastGroup === 0n || lastGroup >= minXfsGroupBlocks ? blocks : blocks - lastGroup + minXfsGroupBlocks;
}

const inodeSize = 256n;
const bytesPerInode = 16384n;

/** Groups that carry a copy of the superblock: 0, 1 and the powers of 3, 5 and 7 (feature sparse_super). */
function superblockCopies(groups: bigint): bigint {
  let count = groups > 1n ? 2n : 1n;
  for (const base of [3n, 5n, 7n]) for (let group = base; group < groups; group *= base) count += 1n;
  return count;
}

function hasCopy(group: bigint): boolean {
  return superblockCopies(group + 1n) > superblockCopies(group) || group < 2n;
}

/** The kernel's ext4_calculate_overhead for the features we use; measured to be exact for file systems mke2fs made. */
function ext4Overhead(geometry: Ext4Geometry, blocks: bigint): { readonly all: bigint; readonly lastGroup: bigint } {
  const groups = ceilDiv(blocks, geometry.groupBlocks);
  const inUse = ceilDiv(groups * geometry.descriptorSize, geometry.block);
  const table = geometry.inodeTableBlocks ?? newInodeTable(geometry, blocks, groups);
  const descriptors = geometry.descriptorBlocks ?? newDescriptors(geometry, blocks, inUse);
  const copyBlocks = 1n + max(descriptors, inUse);
  const ownBlocks = table + 2n;
  return {
    all: groups * ownBlocks + superblockCopies(groups) * copyBlocks + geometry.journalBlocks,
    lastGroup: ownBlocks + (hasCopy(groups - 1n) ? copyBlocks : 0n),
  };
}

function newInodeTable({ block }: Ext4Geometry, blocks: bigint, groups: bigint): bigint {
  return ceilDiv(ceilDiv(ceilDiv(blocks * block, bytesPerInode), groups) * inodeSize, block);
}

/** mke2fs reserves space for the descriptors of a file system 1024 times as large, but at most one indirect block. */
function newDescriptors({ block, descriptorSize, groupBlocks }: Ext4Geometry, blocks: bigint, inUse: bigint): bigint {
  const largest = blocks * 1024n > 2n ** 32n - 1n && blocks <= 2n ** 32n - 1n ? 2n ** 32n - 1n : blocks * 1024n;
  const all = ceilDiv(ceilDiv(largest, groupBlocks), block / descriptorSize);
  const reserved = all > inUse ? all - inUse : 0n;
  const maxReserved = block / 4n;
  return inUse + min(reserved, maxReserved);
}

function ext4Blocks(geometry: Ext4Geometry, wanted: bigint): bigint {
  // Each round adds the tables for the blocks of the previous round. It converges because tables take a few percent.
  let blocks = wanted;
  for (;;) {
    const overhead = ext4Overhead(geometry, blocks);
    let next = wanted + overhead.all;
    const last = next % geometry.groupBlocks;
    const minLastGroup = overhead.lastGroup + minExt4GroupBlocks;
    if (last > 0n && last < minLastGroup) next += minLastGroup - last;
    if (next <= blocks) return blocks;
    blocks = next;
  }
}

/** Undefined: no known file system, or an implausible superblock. */
export async function readGeometry(path: string): Promise<FoundFileSystem | undefined> {
  const found = await readSuperblock(path);
  if (found === undefined) return undefined;
  return found.kind === 'xfs' ? xfsGeometry(found) : ext4Geometry(found);
}

function xfsGeometry({
  blockBytes: block,
  blocks,
  groupBlocks,
  logBlocks,
}: XfsSuperblock): FoundFileSystem | undefined {
  if (groupBlocks < minXfsGroupBlocks || logBlocks > blocks) return undefined;
  return { geometry: { filesystem: 'xfs', block, logBlocks, groupBlocks }, usableBytes: (blocks - logBlocks) * block };
}

function ext4Geometry(superblock: Ext4Superblock): FoundFileSystem | undefined {
  const { blockBytes: block, blocks, groupBlocks, descriptorBytes: descriptorSize, inodeTableBlocks } = superblock;
  if (groupBlocks < 256n || groupBlocks > 8n * block) return undefined;
  if (descriptorSize < 32n || descriptorSize > block) return undefined;
  const inUse = ceilDiv(ceilDiv(blocks, groupBlocks) * descriptorSize, block);
  const geometry: Ext4Geometry = {
    filesystem: 'ext4',
    block,
    groupBlocks,
    descriptorSize,
    inodeTableBlocks,
    journalBlocks: ceilDiv(superblock.journalBytes, block),
    descriptorBlocks: inUse + superblock.reservedDescriptorBlocks,
  };
  const overhead = ext4Overhead(geometry, blocks).all;
  if (overhead >= blocks) return undefined;
  return { geometry, usableBytes: (blocks - overhead) * block };
}
