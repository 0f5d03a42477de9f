import { writeSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';

/*
 * write(2) may write only a part of its data: on a nearly full disk it writes the blocks that fit and returns their length, and only the
 * next call fails with ENOSPC. Syncing such a truncated record and renaming it over the old one would lose data. Files that must be
 * complete are written with these two functions, or with Node's writeFile, which loops as well. `src/testing/architecture.test.ts` lists
 * the few files that may call write(2) themselves.
 */

/** Writes all data at the file's current position, or throws. */
export async function writeAll(file: Pick<FileHandle, 'write'>, data: string | Uint8Array): Promise<void> {
  const bytes = bytesOf(data);
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, null);
    if (bytesWritten === 0) throw wroteNothing();
    done += bytesWritten;
  }
}

/** Writes all data at the file's current position, or throws. */
export function writeAllSync(fd: number, data: string | Uint8Array): void {
  const bytes = bytesOf(data);
  for (let done = 0; done < bytes.length; ) {
    const written = writeSync(fd, bytes, done, bytes.length - done, null);
    if (written === 0) throw wroteNothing();
    done += written;
  }
}

const bytesOf = (data: string | Uint8Array): Uint8Array => (typeof data === 'string' ? Buffer.from(data) : data);

/** POSIX allows write(2) to return 0; without this check the loop would never end. */
const wroteNothing = (): Error => Object.assign(new Error('EIO: write returned 0'), { code: 'EIO', syscall: 'write' });
