import { type ForeignFunction, libc } from './libc.ts';

/** openat2(2), the same number on every processor. */
const openat2 = 437;
const here = -100;
const [noCrossing, noLinks, cached] = [0x01, 0x04, 0x20];
const closeOnExec = 0o2000000;
const howSize = 24;
/** RWF_NOWAIT */
const noWait = 8;

interface Calls {
  readonly open: ForeignFunction;
  readonly read: ForeignFunction;
}

let made: Calls | 'none' | undefined;

function make(): Calls {
  const { koffi, func } = libc();
  koffi.struct('stowage_read_part', { base: 'uint8_t *', length: 'size_t' });
  return {
    open: func('int64_t syscall(int64_t number, int64_t fd, const char *path, const void *how, int64_t size)'),
    read: func('int64_t preadv2(int fd, stowage_read_part *parts, int count, int64_t offset, int flags)'),
  };
}

/** Elsewhere than on Linux, and with a C library that lacks one, there are none. */
function calls(): Calls | undefined {
  try {
    made ??= process.platform === 'linux' ? make() : 'none';
  } catch {
    made = 'none';
  }
  return made === 'none' ? undefined : made;
}

/**
 * Opens what the kernel finds by heart, without a look at any disk, and therefore at once; never through a symbolic link. `within`
 * is a descriptor of a folder: then on its file system only. Undefined: it would have to look, or cannot tell so (before
 * Linux 5.12), or something is wrong, and the usual way says what. Opening itself must not ask anybody either: on a file system
 * of a server or of a program only with O_PATH.
 */
export function openByHeart(path: string, flags: number, within?: number): number | undefined {
  const how = Buffer.alloc(howSize);
  how.writeBigUInt64LE(BigInt(flags | closeOnExec), 0);
  how.writeBigUInt64LE(BigInt(noLinks | cached | (within === undefined ? 0 : noCrossing)), 16);
  const fd = Number(calls()?.open(openat2, within ?? here, path, how, howSize) ?? -1);
  return fd < 0 ? undefined : fd;
}

/** How much of a file's beginning lies in memory, at most what there is room for; that may be less than there is of it. */
export function readByHeart(fd: number, into: Buffer): number | undefined {
  const count = Number(calls()?.read(fd, { base: into, length: into.length }, 1, 0, noWait) ?? -1);
  return count < 0 ? undefined : count;
}
