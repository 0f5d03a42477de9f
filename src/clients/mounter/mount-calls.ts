import { closeSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import { checked, foreign } from '#base/linux/libc.ts';
import type { HeldPath } from './held-path.ts';

/**
 * What is asked of the kernel directly, since no disk or server has to answer for it, and starting a program takes a hundred
 * times as long. Anything that could wait is left to a program, which can be killed.
 */
export interface MountCalls {
  bind(from: HeldPath, at: HeldPath): void;
  /**
   * With these flags from its first moment, so that the copies have them that other mount namespaces are sent of it: those
   * are not changed with it. False: this kernel has no such call, or a filter of calls does not let it pass.
   */
  bindAs(from: HeldPath, at: HeldPath, flags: readonly string[]): boolean;
  /** A file system that somebody is to serve; nobody has to answer yet. */
  fuse(what: FuseMount, at: HeldPath): void;
  /** A file system in memory, for a few names. */
  memory(source: string, at: HeldPath): void;
  /** What is mounted below it is seen at its other places, too. */
  share(at: HeldPath): void;
  /** Gives what is mounted there exactly these flags, and none of the copies that others were sent of it. */
  remount(at: HeldPath, flags: readonly string[]): void;
  /** Only of a file system that is mounted elsewhere, too: with the last one it is brought to its disk or server. */
  unmount(parent: HeldPath, name: string): void;
  /** The same, whoever uses it. */
  detach(parent: HeldPath, name: string): void;
  /** Of the last one too, on one of Node's threads, for as long as the kernel takes. False: it said no, and nobody knows why. */
  unmountAside(parent: HeldPath, name: string): Promise<boolean>;
}

export interface FuseMount {
  readonly type: string;
  readonly source: string;
  readonly flags: readonly string[];
  /** Those of FUSE. */
  readonly options: string;
}

/** Their numbers are the same on every processor. */
const flagNumbers: Readonly<Record<string, number>> = {
  ro: 1,
  nosuid: 2,
  nodev: 4,
  noexec: 8,
  nosymfollow: 256,
  noatime: 1024,
  nodiratime: 2048,
  relatime: 1 << 21,
};
const sharing = 1 << 20;
const remounting = 32;
const binding = 4096;
const noFollow = 8;
const lazily = 2;

/** The same on every processor, and called by number: the C library has had them for less time than kernels. */
const numbers = { openTree: 428, moveMount: 429, mountSetattr: 442 };
/** `ro`, `nosuid`, `nodev` and `noexec` have the same numbers there as in `flagNumbers`. */
const attributesSize = 32;
const clone = 1;
const closeOnExec = 0o2000000;
const emptyPath = 0x1000;
const bothEmpty = 0x4 | 0x40;

const functions = foreign({
  mount: 'int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)',
  umount2: 'int umount2(const char *target, int flags)',
  openTree: 'int64_t syscall(int64_t number, int64_t fd, const char *path, int64_t flags)',
  mountSetattr:
    'int64_t syscall(int64_t number, int64_t fd, const char *path, int64_t flags, const void *attributes, int64_t size)',
  moveMount:
    'int64_t syscall(int64_t number, int64_t fromFd, const char *from, int64_t toFd, const char *to, int64_t flags)',
});

const sumOf = (flags: readonly string[]): number => flags.reduce((sum, flag) => sum | (flagNumbers[flag] ?? 0), 0);

/** Not there, or kept from us, by whatever stands between us and the kernel: it may permit what there was before. */
const isUnknown = (cause: unknown): boolean => isErrno(cause, 'ENOSYS', 'EPERM', 'EACCES');

/** A copy that is mounted nowhere is given its flags, then its place. */
function placeWith(from: HeldPath, at: HeldPath, flags: readonly string[]): void {
  const { openTree, mountSetattr, moveMount } = functions();
  const how = clone | closeOnExec | emptyPath;
  const tree = checked('open_tree', openTree(numbers.openTree, from.fd, '', how));
  try {
    const attributes = Buffer.alloc(attributesSize);
    attributes.writeBigUInt64LE(BigInt(sumOf(flags)));
    const size = attributes.length;
    checked('mount_setattr', mountSetattr(numbers.mountSetattr, tree, '', emptyPath, attributes, size));
    checked('move_mount', moveMount(numbers.moveMount, tree, '', at.fd, '', bothEmpty));
  } finally {
    closeSync(tree);
  }
}

export const mountCalls: MountCalls = {
  bind: (from, at) => {
    checked('mount', functions().mount(from.through, at.through, null, binding, null));
  },
  bindAs: (from, at, flags) => {
    try {
      placeWith(from, at, flags);
      return true;
    } catch (cause) {
      if (isUnknown(cause)) return false;
      throw cause;
    }
  },
  fuse: ({ type, source, flags, options }, at) => {
    checked('mount', functions().mount(source, at.through, type, sumOf(flags), options));
  },
  memory: (source, at) => {
    const flags = sumOf(['nosuid', 'nodev', 'noexec']);
    checked('mount', functions().mount(source, at.through, 'tmpfs', flags, 'size=1m,mode=700'));
  },
  share: (at) => {
    checked('mount', functions().mount(null, at.through, null, sharing, null));
  },
  remount: (at, flags) => {
    checked('mount', functions().mount(null, at.through, null, sumOf(flags) | remounting | binding, null));
  },
  unmount: (parent, name) => {
    checked('umount', functions().umount2(`${parent.through}/${name}`, noFollow));
  },
  detach: (parent, name) => {
    checked('umount', functions().umount2(`${parent.through}/${name}`, noFollow | lazily));
  },
  unmountAside: (parent, name) => {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    // What went wrong is known to that thread alone.
    functions().umount2.async(`${parent.through}/${name}`, noFollow, (failed: Error | null, result: number) =>
      failed === null ? resolve(result === 0) : reject(failed),
    );
    return promise;
  },
};
