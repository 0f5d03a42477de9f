import { type ForeignFunction, libc } from './libc.ts';

/** openat2(2), the same number on every processor. */
const openat2 = 437;
const atFdcwd = -100;
const [resolveNoXdev, resolveNoSymlinks, resolveCached] = [0x01, 0x04, 0x20];
const closeOnExec = 0o2000000;
const openHowBytes = 24;
/** RWF_NOWAIT */
const rwfNowait = 8;

/** AT_EMPTY_PATH | AT_STATX_DONT_SYNC: cached attributes, without asking the server. statx(2) */
const cachedStatFlags = 0x1000 | 0x4000;
const statxBytes = 256;
const [inodeOffset, majorOffset, minorOffset] = [32, 136, 140];
/** STATX_INO */
const statxIno = 0x100;

interface CachedIoCalls {
  readonly open: ForeignFunction;
  readonly read: ForeignFunction;
  readonly statx: ForeignFunction;
}

let boundCalls: CachedIoCalls | 'none' | undefined;

function bindCalls(): CachedIoCalls {
  const { koffi, func } = libc();
  koffi.struct('stowage_read_part', { base: 'uint8_t *', length: 'size_t' });
  return {
    open: func('int64_t syscall(int64_t number, int64_t fd, const char *path, const void *how, int64_t size)'),
    read: func('int64_t preadv2(int fd, stowage_read_part *parts, int count, int64_t offset, int flags)'),
    statx: func('int statx(int fd, const char *path, int flags, unsigned int mask, void *into)'),
  };
}

/** Undefined: this is not Linux, or the C library lacks one of the functions. */
function calls(): CachedIoCalls | undefined {
  try {
    boundCalls ??= process.platform === 'linux' ? bindCalls() : 'none';
  } catch {
    boundCalls = 'none';
  }
  return boundCalls === 'none' ? undefined : boundCalls;
}

/**
 * Opens a path only if the kernel can resolve it from its caches (RESOLVE_CACHED), so it never waits for a disk. Symbolic links are never
 * followed. `within`: the descriptor of a folder, and then only on its file system. Undefined: the path is not cached, the kernel is older
 * than 5.12, or an error occurred, which the ordinary open reports. The open itself must not wait either: on network and FUSE file systems
 * use O_PATH.
 */
export function openCached(path: string, flags: number, folderFd?: number): number | undefined {
  const openHow = Buffer.alloc(openHowBytes);
  openHow.writeBigUInt64LE(BigInt(flags | closeOnExec), 0);
  openHow.writeBigUInt64LE(
    BigInt(resolveNoSymlinks | resolveCached | (folderFd === undefined ? 0 : resolveNoXdev)),
    16,
  );
  const fd = Number(calls()?.open(openat2, folderFd ?? atFdcwd, path, openHow, openHowBytes) ?? -1);
  return fd < 0 ? undefined : fd;
}

/** Reads the beginning of a file as far as it is in the page cache and fits. The file may be longer. */
export function readCached(fd: number, buffer: Buffer): number | undefined {
  const count = Number(calls()?.read(fd, { base: buffer, length: buffer.length }, 1, 0, rwfNowait) ?? -1);
  return count < 0 ? undefined : count;
}

/** Identifies a file, as in stat(2). */
export interface FileIdentity {
  readonly dev: bigint;
  readonly ino: bigint;
}

/** The identity of an open file, without asking a disk or server. */
export function cachedIdentity(fd: number): FileIdentity | undefined {
  const buffer = Buffer.alloc(statxBytes);
  if (Number(calls()?.statx(fd, '', cachedStatFlags, statxIno, buffer) ?? -1) !== 0) return undefined;
  const [major, minor] = [BigInt(buffer.readUInt32LE(majorOffset)), BigInt(buffer.readUInt32LE(minorOffset))];
  // Combined as in makedev(3).
  const dev =
    ((major & 0xffff_f000n) << 32n) | ((major & 0xfffn) << 8n) | ((minor & 0xffff_ff00n) << 12n) | (minor & 0xffn);
  return { dev, ino: buffer.readBigUInt64LE(inodeOffset) };
}
