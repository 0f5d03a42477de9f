import { closeSync } from 'node:fs';
import { isErrno } from '#base/errno.ts';
import { checkResult, lazyBindings } from '#base/linux/libc.ts';
import type { HeldPath } from './held-path.ts';

/**
 * Mount system calls for which no disk or server has to answer; starting a program would take a hundred times as long. Calls that can
 * block are left to programs, which can be killed.
 */
export interface MountCalls {
  bind(from: HeldPath, at: HeldPath): void;
  /**
   * Binds with the flags set from the start, so that the copies propagated to other mount namespaces have them too; a remount does not reach
   * the copies. False: the kernel lacks the call, or a seccomp filter denies it.
   */
  bindWithFlags(from: HeldPath, at: HeldPath, flags: readonly string[]): boolean;
  /** Mounts a FUSE file system. Its daemon need not answer yet. */
  fuse(what: FuseMount, at: HeldPath): void;
  /** Mounts a small tmpfs. */
  tmpfs(source: string, at: HeldPath): void;
  /** Makes the mount shared: mounts below it propagate to its peers. */
  makeShared(at: HeldPath): void;
  /** Sets exactly these flags on this mount. Copies in other mount namespaces keep theirs. */
  remount(at: HeldPath, flags: readonly string[]): void;
  /** Only for a file system that is also mounted elsewhere: the last unmount syncs it to its disk or server, which can block. */
  unmount(parent: HeldPath, name: string): void;
  /** Lazy unmount (MNT_DETACH): succeeds although the mount is in use. */
  detach(parent: HeldPath, name: string): void;
  /** Unmounts on a thread of Node's pool, also the last mount of a file system. False: it failed; the errno is not known. */
  unmountOnThread(parent: HeldPath, name: string): Promise<boolean>;
}

export interface FuseMount {
  readonly type: string;
  readonly source: string;
  readonly flags: readonly string[];
  /** FUSE mount options. */
  readonly options: string;
}

/** MS_* values, the same on every processor. */
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
const sharedFlag = 1 << 20;
const remountFlag = 32;
const bindFlag = 4096;
const noFollowFlag = 8;
const lazyFlag = 2;

/** System call numbers, the same on every processor. Called by number, since C libraries got wrappers later than kernels got the calls. */
const syscallNumbers = { openTree: 428, moveMount: 429, mountSetattr: 442 };
/** In `struct mount_attr`, `ro`, `nosuid`, `nodev` and `noexec` have the values of `flagNumbers`. */
const attributesBytes = 32;
const cloneFlag = 1;
const closeOnExecFlag = 0o2000000;
const emptyPathFlag = 0x1000;
const bothPathsEmptyFlags = 0x4 | 0x40;

const functions = lazyBindings({
  mount: 'int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)',
  umount2: 'int umount2(const char *target, int flags)',
  openTree: 'int64_t syscall(int64_t number, int64_t fd, const char *path, int64_t flags)',
  mountSetattr:
    'int64_t syscall(int64_t number, int64_t fd, const char *path, int64_t flags, const void *attributes, int64_t size)',
  moveMount:
    'int64_t syscall(int64_t number, int64_t fromFd, const char *from, int64_t toFd, const char *to, int64_t flags)',
});

const sumOf = (flags: readonly string[]): number => flags.reduce((sum, flag) => sum | (flagNumbers[flag] ?? 0), 0);

/** The call does not exist or a seccomp filter denies it. The filter may still permit the older calls. */
const isUnavailable = (cause: unknown): boolean => isErrno(cause, 'ENOSYS', 'EPERM', 'EACCES');

/** Clones the mount detached, sets its flags, then attaches it. */
function attachWithFlags(from: HeldPath, at: HeldPath, flags: readonly string[]): void {
  const { openTree, mountSetattr, moveMount } = functions();
  const openFlags = cloneFlag | closeOnExecFlag | emptyPathFlag;
  const tree = checkResult('open_tree', openTree(syscallNumbers.openTree, from.fd, '', openFlags));
  try {
    const attributes = Buffer.alloc(attributesBytes);
    attributes.writeBigUInt64LE(BigInt(sumOf(flags)));
    const size = attributes.length;
    checkResult('mount_setattr', mountSetattr(syscallNumbers.mountSetattr, tree, '', emptyPathFlag, attributes, size));
    checkResult('move_mount', moveMount(syscallNumbers.moveMount, tree, '', at.fd, '', bothPathsEmptyFlags));
  } finally {
    closeSync(tree);
  }
}

export const mountCalls: MountCalls = {
  bind: (from, at) => {
    checkResult('mount', functions().mount(from.procPath, at.procPath, null, bindFlag, null));
  },
  bindWithFlags: (from, at, flags) => {
    try {
      attachWithFlags(from, at, flags);
      return true;
    } catch (cause) {
      if (isUnavailable(cause)) return false;
      throw cause;
    }
  },
  fuse: ({ type, source, flags, options }, at) => {
    checkResult('mount', functions().mount(source, at.procPath, type, sumOf(flags), options));
  },
  tmpfs: (source, at) => {
    const flags = sumOf(['nosuid', 'nodev', 'noexec']);
    checkResult('mount', functions().mount(source, at.procPath, 'tmpfs', flags, 'size=1m,mode=700'));
  },
  makeShared: (at) => {
    checkResult('mount', functions().mount(null, at.procPath, null, sharedFlag, null));
  },
  remount: (at, flags) => {
    checkResult('mount', functions().mount(null, at.procPath, null, sumOf(flags) | remountFlag | bindFlag, null));
  },
  unmount: (parent, name) => {
    checkResult('umount', functions().umount2(`${parent.procPath}/${name}`, noFollowFlag));
  },
  detach: (parent, name) => {
    checkResult('umount', functions().umount2(`${parent.procPath}/${name}`, noFollowFlag | lazyFlag));
  },
  unmountOnThread: (parent, name) => {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    // errno is per thread, so the main thread cannot read it.
    functions().umount2.async(`${parent.procPath}/${name}`, noFollowFlag, (failed: Error | null, result: number) =>
      failed === null ? resolve(result === 0) : reject(failed),
    );
    return promise;
  },
};
