import { checked, foreign } from '#base/linux/libc.ts';
import type { HeldPath } from './held-path.ts';

/**
 * What is asked of the kernel directly, since no disk or server has to answer for it, and starting a program takes a hundred
 * times as long. Anything that could wait is left to a program, which can be killed.
 */
export interface MountCalls {
  bind(from: HeldPath, at: HeldPath): void;
  /** A file system that somebody is to serve; nobody has to answer yet. */
  fuse(what: FuseMount, at: HeldPath): void;
  /** A file system in memory, for a few names. */
  memory(source: string, at: HeldPath): void;
  /** What is mounted below it is seen at its other places, too. */
  share(at: HeldPath): void;
  /** Gives what is mounted there exactly these flags. */
  remount(at: HeldPath, flags: readonly string[]): void;
  /** Only of a file system that is mounted elsewhere, too: with the last one it is brought to its disk or server. */
  unmount(parent: HeldPath, name: string): void;
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
  ...{ ro: 1, nosuid: 2, nodev: 4, noexec: 8, nosymfollow: 256, noatime: 1024, nodiratime: 2048, relatime: 1 << 21 },
};
const sharing = 1 << 20;
const remounting = 32;
const binding = 4096;
const noFollow = 8;

const functions = foreign({
  mount: 'int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)',
  umount2: 'int umount2(const char *target, int flags)',
});

const sumOf = (flags: readonly string[]): number => flags.reduce((sum, flag) => sum | (flagNumbers[flag] ?? 0), 0);

export const mountCalls: MountCalls = {
  bind: (from, at) => {
    checked('mount', functions().mount(from.through, at.through, null, binding, null));
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
  unmountAside: (parent, name) => {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    // What went wrong is known to that thread alone.
    functions().umount2.async(`${parent.through}/${name}`, noFollow, (failed: Error | null, result: number) =>
      failed === null ? resolve(result === 0) : reject(failed),
    );
    return promise;
  },
};
