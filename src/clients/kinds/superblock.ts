import { constants } from 'node:fs';
import { open } from 'node:fs/promises';

export type FileSystem = 'xfs' | 'ext4';

/** What the image's superblock says of the file system in it, in blocks of its own. */
export interface Geometry {
  readonly blockBytes: number;
  readonly blocks: number;
  /** Allocation groups: both kinds grow by them, and leave a last one out that would be too small. */
  readonly groupBlocks: number;
  readonly firstBlock: number;
  readonly leastGroupBlocks: number;
  /** Of the journal inside it, which statfs does not count (xfs). */
  readonly logBlocks: number;
  /** ext4: nobody was in the middle of changing it by other means than its journal. */
  readonly clean: boolean;
}

/** Undefined: there is no such file system in it. */
export async function readGeometry(image: string, kind: FileSystem): Promise<Geometry | undefined> {
  await using file = await open(image, constants.O_RDONLY | constants.O_NOFOLLOW);
  const { bytesRead, buffer } = await file.read(Buffer.alloc(4096), 0, 4096, 0);
  if (bytesRead < 4096) return undefined;
  return kind === 'xfs' ? xfsGeometry(buffer) : ext4Geometry(buffer.subarray(1024));
}

/** struct xfs_dsb, fs/xfs/libxfs/xfs_format.h: big-endian, at the beginning. */
export function xfsGeometry(sb: Buffer): Geometry | undefined {
  if (sb.toString('latin1', 0, 4) !== 'XFSB') return undefined;
  const internalLog = sb.readBigUInt64BE(48) !== 0n;
  return {
    blockBytes: sb.readUInt32BE(4),
    blocks: Number(sb.readBigUInt64BE(8)),
    groupBlocks: sb.readUInt32BE(84),
    firstBlock: 0,
    // XFS_MIN_AG_BLOCKS.
    leastGroupBlocks: 64,
    logBlocks: internalLog ? sb.readUInt32BE(96) : 0,
    clean: true,
  };
}

/** struct ext4_super_block, fs/ext4/ext4.h: little-endian, 1024 bytes into the image. */
export function ext4Geometry(sb: Buffer): Geometry | undefined {
  if (sb.readUInt16LE(0x38) !== 0xef53) return undefined;
  const blockBytes = 1024 << sb.readUInt32LE(0x18);
  const has64bit = (sb.readUInt32LE(0x60) & 0x80) !== 0;
  const high = has64bit ? sb.readUInt32LE(0x150) : 0;
  const inodeTable = Math.ceil((sb.readUInt32LE(0x28) * sb.readUInt16LE(0x58)) / blockBytes);
  return {
    blockBytes,
    blocks: high * 2 ** 32 + sb.readUInt32LE(0x4),
    groupBlocks: sb.readUInt32LE(0x20),
    firstBlock: sb.readUInt32LE(0x14),
    // resize2fs leaves out a last group without room for its two bitmaps, its inode table and 50 blocks.
    leastGroupBlocks: 2 + inodeTable + 50,
    logBlocks: 0,
    // s_state: EXT4_VALID_FS set and EXT4_ERROR_FS not. resize2fs takes the first away while it works.
    clean: (sb.readUInt16LE(0x3a) & 0x3) === 1,
  };
}

/** Whether a file of that size holds room that a file system of `blocks` blocks does not use yet, and could. */
export function canGrow(geometry: Geometry, bytes: number, blocks = geometry.blocks): boolean {
  const rest = Math.floor(bytes / geometry.blockBytes) - blocks;
  if (rest <= 0) return false;
  const wholeGroups = geometry.groupBlocks > 0 && (blocks - geometry.firstBlock) % geometry.groupBlocks === 0;
  return !wholeGroups || rest >= geometry.leastGroupBlocks;
}
