import { closeSync, openSync } from 'node:fs';
import { tryLock } from './system.ts';

/**
 * Whether a data path lives that found its keeper at this path: it keeps a file beside it locked. A new keeper then waits
 * for it to come, instead of making a second one. Process numbers would mean nothing in another container.
 */

const fileOf = (path: string): string => `${path}.serving`;

/** Held until it is disposed of, or the process ends. */
export function announcePresence(path: string): Disposable {
  const fd = openSync(fileOf(path), 'a', 0o600);
  tryLock(fd);
  return { [Symbol.dispose]: () => closeSync(fd) };
}

export function isServed(path: string): boolean {
  const fd = openSync(fileOf(path), 'a', 0o600);
  try {
    return !tryLock(fd);
  } finally {
    closeSync(fd);
  }
}
