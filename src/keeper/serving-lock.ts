import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { tryLock } from './system-calls.ts';

/**
 * Whether a data path lives that found its keeper at this path: it keeps a file beside it locked. A new keeper then waits
 * for it to come, instead of making a second one. Process numbers would mean nothing in another container.
 */

const fileOf = (path: string): string => `${path}.serving`;

const retryMs = 100;

/** Held until it is disposed of, or the process ends. */
export function holdServingLock(path: string, clock: Clock): Disposable {
  const fd = openSync(fileOf(path), 'a', 0o600);
  let retry: Disposable | undefined;
  // A predecessor that was killed and has not quite ended has it still, and somebody who looks may have it for a moment.
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
 * Makes no file: one that belongs to whoever looks could not be opened by a data path. Who looks may be root, and the folder is
 * the keeper's: whatever else was put there is not followed, nor waited for.
 */
export function isServed(path: string): boolean {
  const fd = opened(fileOf(path));
  if (fd === undefined) return false;
  try {
    return fstatSync(fd).isFile() && !tryLock(fd);
  } finally {
    closeSync(fd);
  }
}

function opened(file: string): number | undefined {
  try {
    return openSync(file, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  } catch (cause) {
    if (['ENOENT', 'ELOOP', 'ENXIO'].includes((cause as NodeJS.ErrnoException).code ?? '')) return undefined;
    throw cause;
  }
}
