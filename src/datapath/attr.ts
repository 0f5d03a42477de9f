import type { Attr } from '#wire/fuse/operations.ts';
import { type Attributes, fileType } from '#wire/nfs3/structures.ts';

const typeBits: Readonly<Record<number, number>> = {
  [fileType.regular]: 0o100000,
  [fileType.directory]: 0o040000,
  [fileType.block]: 0o060000,
  [fileType.character]: 0o020000,
  [fileType.link]: 0o120000,
  [fileType.socket]: 0o140000,
  [fileType.fifo]: 0o010000,
};

/** The server may send an unknown type; the object is then unusable. */
export const typeOf = ({ type }: Pick<Attributes, 'type'>): number => typeBits[type] ?? 0;

export const typeByBits = (mode: number): number =>
  Number(Object.keys(typeBits).find((type) => typeBits[Number(type)] === (mode & 0o170000)) ?? 0);

/** Programs that size buffers by this make fewer and larger requests. */
const blockSize = 64 * 1024;
const largestExact = BigInt(Number.MAX_SAFE_INTEGER);

/** Ids beyond 53 bits are folded. Collisions within one file system are very unlikely. */
export const inoOf = (fileId: bigint): number =>
  fileId <= largestExact ? Number(fileId) : Number(BigInt.asUintN(53, fileId ^ (fileId >> 11n)));

/** `hides`: one of its links is a hidden name, which is not shown. `gid`: the group to show. */
export const attrOf = (a: Attributes, size: number, hides: boolean, gid = a.gid): Attr => ({
  ino: inoOf(a.fileId),
  size,
  blocks: Math.ceil(a.used / 512),
  atime: a.atime,
  mtime: a.mtime,
  ctime: a.ctime,
  atimeNs: a.atimeNs,
  mtimeNs: a.mtimeNs,
  ctimeNs: a.ctimeNs,
  mode: typeOf(a) | a.mode,
  nlink: hides ? Math.max(0, a.links - 1) : a.links,
  uid: a.uid,
  gid,
  rdev: a.type === fileType.character || a.type === fileType.block ? deviceNumber(a.major, a.minor) : 0,
  blksize: blockSize,
});

/** Packed like the kernel's new_encode_dev. */
const deviceNumber = (major: number, minor: number): number =>
  ((minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)) >>> 0;

export const majorOf = (device: number): number => (device >>> 8) & 0xfff;
export const minorOf = (device: number): number => (device & 0xff) | ((device >>> 12) & 0xfff00);
