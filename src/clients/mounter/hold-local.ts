import { closeSync, constants, fstatSync, readlinkSync } from 'node:fs';
import { lazyBindings } from '#base/linux/libc.ts';
import { type HeldPath, O_PATH } from './held-path.ts';
import type { MountTable } from './mountinfo.ts';

/**
 * Opens a path synchronously if it is on the disk of Stowage's own records: everything depends on that disk anyway, and a round trip
 * through the thread pool takes longer than the call. Undefined: the path is elsewhere, is missing, or this cannot be decided here. Then the
 * caller uses the asynchronous way, which blocks no other work and reports errors.
 */
export type HoldLocal = (path: string, table: MountTable) => HeldPath | undefined;

/** openat2(2), the same number on every processor. */
const openat2 = 437;
const here = -100;
/** RESOLVE_NO_SYMLINKS: a link could lead to a disk that does not answer. */
const noLinks = 0x04;
const howSize = 24;
/** Absolute, without `.`, `..` and empty names: without links such a path is canonical, and readlink is not needed. */
const isPlain = (path: string): boolean => /^(?:\/(?!\.{1,2}(?:\/|$))[^/]+)+$/.test(path);

const functions = lazyBindings({
  openat2: 'int64_t syscall(int64_t number, int64_t fd, const char *path, const void *how, int64_t size)',
});

/** `own`: a path on the disk of the records. */
export function createHoldLocal(own: string | undefined): HoldLocal {
  const how = Buffer.alloc(howSize);
  how.writeBigUInt64LE(BigInt(O_PATH | constants.O_NOFOLLOW | 0o2000000), 0);
  how.writeBigUInt64LE(BigInt(noLinks), 16);
  return (path, table) => {
    const device = own === undefined ? undefined : table.holding(own)?.device;
    if (device === undefined || !isPlain(path) || table.holding(path)?.device !== device) return undefined;
    // The asynchronous way reports any error; kernels before 5.6 lack the call.
    const fd = Number(functions().openat2(openat2, here, path, how, howSize));
    if (fd < 0) return undefined;
    try {
      const through = `/proc/self/fd/${fd}`;
      const stats = fstatSync(fd);
      if (!stats.isSymbolicLink())
        return {
          path,
          fd,
          through,
          stats,
          where: () => readlinkSync(through),
          [Symbol.asyncDispose]: async () => closeSync(fd),
        };
    } catch {
      // As above.
    }
    closeSync(fd);
    return undefined;
  };
}
