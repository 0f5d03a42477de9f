import { type BigIntStats, constants } from 'node:fs';
import type { XdrWriter } from '../../xdr/writer.ts';
import { type Attributes, fileType, writePostAttributes } from '../structures.ts';
import type { Identities } from './identities.ts';
import { roundNanoseconds } from './time-rounding.ts';

const { S_IFMT, S_IFREG, S_IFDIR, S_IFLNK, S_IFBLK, S_IFCHR, S_IFSOCK, S_IFIFO } = constants;
const fileTypeByFormat: ReadonlyMap<number, number> = new Map([
  [S_IFREG, fileType.regular],
  [S_IFDIR, fileType.directory],
  [S_IFLNK, fileType.link],
  [S_IFBLK, fileType.block],
  [S_IFCHR, fileType.character],
  [S_IFSOCK, fileType.socket],
  [S_IFIFO, fileType.fifo],
]);

const nanosecondsPerSecond = 1_000_000_000n;
/** nfstime3 has 32 bits of seconds, and no times before 1970. */
const seconds = (ns: bigint): number => (ns < 0n ? 0 : Number(ns / nanosecondsPerSecond) >>> 0);
const nanoseconds = (ns: bigint): number => (ns < 0n ? 0 : Number(ns % nanosecondsPerSecond));
/** For atime and mtime, which clients can set. */
const roundedNanoseconds = (ns: bigint): number => roundNanoseconds(seconds(ns), nanoseconds(ns));

export type ToAttributes = (stats: BigIntStats) => Attributes;

/** Converts stats to fattr3. The fsid is not the device number, which can change after a restart. */
export function createToAttributes(
  fsid: bigint,
  identities: Pick<Identities, 'toClientUid' | 'toClientGid'>,
): ToAttributes {
  return (stats) => {
    const mode = Number(stats.mode);
    const rdev = Number(stats.rdev);
    return {
      type: fileTypeByFormat.get(mode & S_IFMT) ?? fileType.regular,
      mode: mode & 0o7777,
      links: Number(stats.nlink),
      uid: identities.toClientUid(Number(stats.uid)),
      gid: identities.toClientGid(Number(stats.gid)),
      size: Number(stats.size),
      used: Number(stats.blocks) * 512,
      // Like glibc's major() and minor() for numbers of 32 bits.
      major: (rdev >>> 8) & 0xfff,
      minor: (rdev & 0xff) | ((rdev >>> 12) & 0xfff00),
      fsid,
      fileId: stats.ino,
      atime: seconds(stats.atimeNs),
      atimeNs: roundedNanoseconds(stats.atimeNs),
      mtime: seconds(stats.mtimeNs),
      mtimeNs: roundedNanoseconds(stats.mtimeNs),
      ctime: seconds(stats.ctimeNs),
      ctimeNs: nanoseconds(stats.ctimeNs),
    };
  };
}

/** wcc_data: shows a client whether only its own call changed the object. */
export interface WccData {
  readonly before: Attributes;
  readonly after: Attributes | undefined;
}

export function writeWccData(writer: XdrWriter, { before, after }: WccData): void {
  writer.bool(true).size(before.size).u32(before.mtime).u32(before.mtimeNs).u32(before.ctime).u32(before.ctimeNs);
  writePostAttributes(writer, after);
}
