import { randomUUID } from 'node:crypto';
import { type BigIntStats, closeSync, fstatSync, openSync, unlinkSync } from 'node:fs';

/** Creates a file in a directory, removes it, and returns its attributes. Undefined: no file can be created there. */
export function statNewFile(directory: string): BigIntStats | undefined {
  // In a container process ids repeat: a file that a killed server left must not be in the way.
  const path = `${directory}/.stowage-probe-${randomUUID()}`;
  let fd: number;
  try {
    fd = openSync(path, 'wx', 0o600);
  } catch {
    return undefined;
  }
  try {
    unlinkSync(path);
    return fstatSync(fd, { bigint: true });
  } finally {
    closeSync(fd);
  }
}
