import { randomUUID } from 'node:crypto';
import { type BigIntStats, closeSync, fstatSync, openSync, unlinkSync } from 'node:fs';

/** Creates a file in a directory, removes it, and returns its attributes. Undefined: no file can be created there. */
export function statNewFile(directory: string): BigIntStats | undefined {
  // A random name, since process ids repeat in containers and a killed server may have left a file.
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
