import { constants } from 'node:fs';
import { open } from 'node:fs/promises';

/** The superblock of a file system. A volume's user may have written it: only the block size is validated. */
export type Superblock = XfsSuperblock | Ext4Superblock;

interface CommonGeometry {
  readonly blockBytes: bigint;
  readonly blocks: bigint;
  /** The size of an allocation group. Both file systems grow by groups, and leave out a last one that would be too small. */
  readonly groupBlocks: bigint;
}

export interface XfsSuperblock extends CommonGeometry {
  readonly kind: 'xfs';
  /** The size of an internal log, which statfs(2) does not count; 0 if the log is external. */
  readonly logBlocks: bigint;
}

export interface Ext4Superblock extends CommonGeometry {
  readonly kind: 'ext4';
  readonly firstBlock: bigint;
  /** Number of blocks in each group. */
  readonly inodeTableBlocks: bigint;
  readonly journalBytes: bigint;
  readonly descriptorBytes: bigint;
  /** Reserved for the descriptors of future groups. */
  readonly reservedDescriptorBlocks: bigint;
  /** False: a program was interrupted while it changed the file system without the journal. */
  readonly clean: boolean;
}

/** XFS_MIN_AG_BLOCKS: xfs_growfs leaves out a last group of fewer blocks than this. */
export const minXfsGroupBlocks = 64n;

/** mke2fs and resize2fs leave out a last group that has room for fewer blocks than this beyond its own tables. */
export const minExt4GroupBlocks = 50n;

/** Undefined: the file has neither file system. Does not follow links or block, since the path may not be a file. */
export async function readSuperblock(path: string): Promise<Superblock | undefined> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const { bytesRead, buffer } = await file.read(Buffer.alloc(2048), 0, 2048, 0);
  return bytesRead < 2048 ? undefined : parseSuperblock(buffer);
}

/** Parses the first 2 KiB. */
export function parseSuperblock(head: Buffer): Superblock | undefined {
  const found = parseXfs(head) ?? parseExt4(head.subarray(1024));
  return found !== undefined && isBlockSize(found.blockBytes) ? found : undefined;
}

const isBlockSize = (bytes: bigint): boolean => bytes >= 512n && bytes <= 65536n && (bytes & (bytes - 1n)) === 0n;

/** struct xfs_dsb, fs/xfs/libxfs/xfs_format.h: big-endian, at the beginning. */
function parseXfs(sb: Buffer): XfsSuperblock | undefined {
  if (sb.toString('latin1', 0, 4) !== 'XFSB') return undefined;
  const logIsInside = sb.readBigUInt64BE(48) !== 0n;
  return {
    kind: 'xfs',
    blockBytes: BigInt(sb.readUInt32BE(4)),
    blocks: sb.readBigUInt64BE(8),
    groupBlocks: BigInt(sb.readUInt32BE(84)),
    logBlocks: logIsInside ? BigInt(sb.readUInt32BE(96)) : 0n,
  };
}

/** struct ext4_super_block, fs/ext4/ext4.h: little-endian, 1024 bytes into the image. */
function parseExt4(sb: Buffer): Ext4Superblock | undefined {
  if (sb.readUInt16LE(0x38) !== 0xef53) return undefined;
  const u32 = (at: number): bigint => BigInt(sb.readUInt32LE(at));
  // Larger shifts are no valid block size; the limit only avoids huge numbers.
  const blockBytes = 1024n << BigInt(Math.min(sb.readUInt32LE(0x18), 8));
  const has64bit = (sb.readUInt32LE(0x60) & 0x80) !== 0;
  const inodeTableBytes = u32(0x28) * BigInt(sb.readUInt16LE(0x58));
  return {
    kind: 'ext4',
    blockBytes,
    blocks: u32(0x4) + (has64bit ? u32(0x150) << 32n : 0n),
    groupBlocks: u32(0x20),
    firstBlock: u32(0x14),
    inodeTableBlocks: (inodeTableBytes + blockBytes - 1n) / blockBytes,
    // A copy of the journal inode's size.
    journalBytes: u32(0x14c) + (u32(0x148) << 32n),
    descriptorBytes: has64bit ? BigInt(sb.readUInt16LE(0xfe)) : 32n,
    reservedDescriptorBlocks: BigInt(sb.readUInt16LE(0xce)),
    // s_state: EXT4_VALID_FS set and EXT4_ERROR_FS not. resize2fs clears the former while it works.
    clean: (sb.readUInt16LE(0x3a) & 0x3) === 1,
  };
}
