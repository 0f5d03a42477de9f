import { isFull, isRefusal } from '../shelf/files.ts';
import type { NfsFiles } from './files.ts';

/**
 * The server's time in ms: NFS has no call for it, but the server stamps what it changes. A folder takes no room for that,
 * so a full server can answer too; one that refuses is asked to write a file. Undefined: it has no room for one.
 */
export async function serverTime(
  files: Pick<NfsFiles, 'touch' | 'write' | 'unlink'>,
  folder: string,
  scratch: () => string,
): Promise<number | undefined> {
  try {
    return await files.touch(folder);
  } catch (cause) {
    if (!isRefusal(cause)) throw cause;
  }
  const path = scratch();
  try {
    return (await files.write(path, '.')) || undefined;
  } catch (cause) {
    if (!isFull(cause)) throw cause;
    return undefined;
  } finally {
    await files.unlink(path).catch(() => false);
  }
}
