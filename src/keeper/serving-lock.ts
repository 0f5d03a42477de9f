import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { tryLock } from './system-calls.ts';

/**
 * A data path keeps a file beside its keeper's socket locked while it serves. A new keeper that finds it locked waits
 * for that data path instead of starting a second one. Pids would mean nothing in another container.
 */

const lockPath = (path: string): string => `${path}.serving`;

const retryMs = 100;

/** Held until disposed or until the process exits. */
export function holdServingLock(path: string, clock: Clock): Disposable {
  const fd = openSync(lockPath(path), 'a', 0o600);
  let retry: Disposable | undefined;
  // A killed predecessor may still hold the lock, and a check holds it for a moment.
  const lock = (): void => {
    retry = tryLock(fd) ? undefined : clock.after(retryMs, lock);
  };
  lock();
  return {
    [Symbol.dispose]: () => {
      retry?.[Symbol.dispose]();
      closeSync(fd);
    },
  };
}

/**
 * Does not create the file: a data path could not open one owned by another user. The caller may be root and the folder
 * is the keeper's, so symbolic links are not followed and FIFOs do not block.
 */
export function isServed(path: string): boolean {
  const fd = openLockFile(lockPath(path));
  if (fd === undefined) return false;
  try {
    return fstatSync(fd).isFile() && !tryLock(fd);
  } finally {
    closeSync(fd);
  }
}

function openLockFile(file: string): number | undefined {
  try {
    return openSync(file, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ELOOP', 'ENXIO')) return undefined;
    throw cause;
  }
}
