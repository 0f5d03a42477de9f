import { mkdir, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isErrno } from './errno.ts';

/**
 * Makes a folder and those above it that are missing; one that is there stays as it is. By hand, since Node's own
 * `recursive` never ends where a folder can be neither found nor made, as in /proc.
 */
export async function makeFolders(path: string, mode: number): Promise<void> {
  try {
    await makeOne(path, mode);
  } catch (cause) {
    const above = dirname(path);
    if (!isErrno(cause, 'ENOENT') || above === path) throw cause;
    if (!(await isThere(above))) await makeFolders(above, mode);
    // Once more, and no more: somebody else may have made it just now.
    await makeOne(path, mode);
  }
}

async function makeOne(path: string, mode: number): Promise<void> {
  try {
    await mkdir(path, { mode });
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST') || !(await stat(path)).isDirectory()) throw cause;
  }
}

async function isThere(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}
