import { closeSync, constants, fstatSync, readlinkSync } from 'node:fs';
import { foreign } from '#base/linux/libc.ts';
import { type HeldPath, O_PATH } from './held-path.ts';
import type { MountTable } from './mountinfo.ts';

/**
 * What lies on the disk of our own records is looked at in line: for that disk everybody waits anyway, and to wait for a thread
 * takes longer than to look. Undefined: it lies elsewhere, is not there, or cannot be told from here; then whoever asks takes
 * the way on which nobody else waits, and which knows the words for what is wrong.
 */
export type Near = (path: string, table: MountTable) => HeldPath | undefined;

/** openat2(2), the same number on every processor. */
const openat2 = 437;
const here = -100;
/** A link could lead to a disk that does not answer. */
const noLinks = 0x04;
const howSize = 24;
/** From the root, and without a name that is none: then a way without links leads where it says, and nobody has to ask the kernel. */
const isPlain = (path: string): boolean => /^(?:\/(?!\.{1,2}(?:\/|$))[^/]+)+$/.test(path);

const functions = foreign({
  openat2: 'int64_t syscall(int64_t number, int64_t fd, const char *path, const void *how, int64_t size)',
});

/** `own` is on that disk. */
export function createNear(own: string | undefined): Near {
  const how = Buffer.alloc(howSize);
  how.writeBigUInt64LE(BigInt(O_PATH | constants.O_NOFOLLOW | 0o2000000), 0);
  how.writeBigUInt64LE(BigInt(noLinks), 16);
  return (path, table) => {
    const device = own === undefined ? undefined : table.holding(own)?.device;
    if (device === undefined || !isPlain(path) || table.holding(path)?.device !== device) return undefined;
    // What is wrong, a kernel before 5.6 too, is for the other way to say.
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
