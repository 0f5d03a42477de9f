import { isDefiniteFailure, isFull } from '../file-store/files.ts';
import type { NfsFiles } from './files.ts';

/**
 * The server's time in ms. NFS has no call for it, so we have the server set a folder's mtime to its own time. That needs no free space. If the
 * server refuses, we write a file instead; undefined if there is no space for one.
 */
export async function serverTime(
  files: Pick<NfsFiles, 'touch' | 'write' | 'unlink'>,
  folder: string,
  scratchPath: () => string,
): Promise<number | undefined> {
  try {
    return await files.touch(folder);
  } catch (cause) {
    if (!isDefiniteFailure(cause)) throw cause;
  }
  const path = scratchPath();
  try {
    return (await files.write(path, '.')) || undefined;
  } catch (cause) {
    if (!isFull(cause)) throw cause;
    return undefined;
  } finally {
    await files.unlink(path).catch(() => false);
  }
}
