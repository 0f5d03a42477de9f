import { checked, foreign } from '#base/linux/libc.ts';
import type { HeldPath } from './held-path.ts';

/**
 * What is asked of the kernel directly, since no disk or server has to answer for it, and starting a program takes a hundred
 * times as long. Anything that could wait is left to a program, which can be killed.
 */
export interface MountCalls {
  bind(from: HeldPath, at: HeldPath): void;
  /** Gives what is mounted there exactly these flags. */
  remount(at: HeldPath, flags: readonly string[]): void;
  /** Only of a file system that is mounted elsewhere, too: with the last one it is brought to its disk or server. */
  unmount(parent: HeldPath, name: string): void;
}

/** Their numbers are the same on every processor. */
const flagNumbers: Readonly<Record<string, number>> = {
  ...{ ro: 1, nosuid: 2, nodev: 4, noexec: 8, nosymfollow: 256, noatime: 1024, nodiratime: 2048, relatime: 1 << 21 },
};
const remounting = 32;
const binding = 4096;
const noFollow = 8;

const functions = foreign({
  mount: 'int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)',
  umount2: 'int umount2(const char *target, int flags)',
});

export const mountCalls: MountCalls = {
  bind: (from, at) => {
    checked('mount', functions().mount(from.through, at.through, null, binding, null));
  },
  remount: (at, flags) => {
    const all = flags.reduce((sum, flag) => sum | (flagNumbers[flag] ?? 0), remounting | binding);
    checked('mount', functions().mount(null, at.through, null, all, null));
  },
  unmount: (parent, name) => {
    checked('umount', functions().umount2(`${parent.through}/${name}`, noFollow));
  },
};
