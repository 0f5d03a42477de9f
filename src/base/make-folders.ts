import { mkdir, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isErrno } from './errno.ts';

/**
 * Creates a folder and its missing parents, and leaves existing ones unchanged. Does not use Node's `recursive` option, which never returns
 * if a folder can be neither found nor created, as in /proc.
 */
export async function makeFolders(path: string, mode: number): Promise<void> {
  try {
    await makeOne(path, mode);
  } catch (cause) {
    const parent = dirname(path);
    if (!isErrno(cause, 'ENOENT') || parent === path) throw cause;
    if (!(await exists(parent))) await makeFolders(parent, mode);
    // Retry once: another process may have created the folder in between.
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

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}
