import { closeSync, constants, fstatSync, readlinkSync } from 'node:fs';
import { lazyBindings } from '#base/linux/libc.ts';
import { type HeldPath, O_PATH } from './held-path.ts';
import type { MountTable } from './mountinfo.ts';

/**
 * Opens a path synchronously if it is on the disk of Stowage's own records: everything depends on that disk anyway, and a round trip
 * through the thread pool takes longer than the call. Undefined: the path is on another disk, is missing, or cannot be opened
 * this way. The caller then opens it asynchronously, which blocks no other work and reports errors.
 */
export type HoldLocal = (path: string, table: MountTable) => HeldPath | undefined;

/** openat2(2), the same number on every processor. */
const openat2Number = 437;
const AT_FDCWD = -100;
/** RESOLVE_NO_SYMLINKS: a link could lead to a disk that does not answer. */
const resolveNoSymlinks = 0x04;
const openHowBytes = 24;
/** Absolute, without `.`, `..` and empty names: without links such a path is canonical, and readlink is not needed. */
const isCanonical = (path: string): boolean => /^(?:\/(?!\.{1,2}(?:\/|$))[^/]+)+$/.test(path);

const functions = lazyBindings({
  openat2: 'int64_t syscall(int64_t number, int64_t fd, const char *path, const void *how, int64_t size)',
});

/** `recordsPath`: a path on the disk of the records. */
export function createHoldLocal(recordsPath: string | undefined): HoldLocal {
  const openHow = Buffer.alloc(openHowBytes);
  openHow.writeBigUInt64LE(BigInt(O_PATH | constants.O_NOFOLLOW | 0o2000000), 0);
  openHow.writeBigUInt64LE(BigInt(resolveNoSymlinks), 16);
  return (path, table) => {
    const device = recordsPath === undefined ? undefined : table.mountContaining(recordsPath)?.device;
    if (device === undefined || !isCanonical(path) || table.mountContaining(path)?.device !== device) return undefined;
    // The caller's asynchronous open reports any error; kernels before 5.6 lack the call.
    const fd = Number(functions().openat2(openat2Number, AT_FDCWD, path, openHow, openHowBytes));
    if (fd < 0) return undefined;
    try {
      const procPath = `/proc/self/fd/${fd}`;
      const stats = fstatSync(fd);
      if (!stats.isSymbolicLink())
        return {
          path,
          fd,
          procPath,
          stats,
          currentPath: () => readlinkSync(procPath),
          [Symbol.asyncDispose]: async () => closeSync(fd),
        };
    } catch {
      // The caller's asynchronous open reports the error.
    }
    closeSync(fd);
    return undefined;
  };
}
