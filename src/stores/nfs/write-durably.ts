import { type FileHandle, type NfsClient, stability } from '#wire/nfs3/index.ts';
import { UnsuitableFile } from '../file-store/files.ts';
import { asSystemError } from './system-error.ts';

/** Give up on a server that restarts, or reports a new verifier, at every write. */
const maxRestarts = 3;

export const toMs = (seconds: number, nanoseconds: number): number => seconds * 1000 + Math.floor(nanoseconds / 1e6);

/** Writes the text from the start of the file. Returns the mtime in ms by the server's clock; 0: the server did not tell. */
export async function writeDurably(
  nfs: NfsClient,
  { path, handle }: { readonly path: string; readonly handle: FileHandle },
  text: string,
  limits: { readonly deadlineMs: number },
): Promise<number> {
  const data = Buffer.from(text);
  let changedAt = 0;
  let restarts = 0;
  for (let done = 0; done < data.length; ) {
    const { count, committed, verifier, change } = await nfs
      .write(handle, done, data.subarray(done), stability.fileSync, limits)
      .catch((cause: unknown) => Promise.reject(asSystemError(cause)));
    // Short writes are allowed. A count of 0 would loop for ever.
    if (count === 0) throw new UnsuitableFile(`${path} cannot be written: the server takes nothing`);
    // If the server restarted in between, it may have lost data. Then write everything again.
    const isKept = committed === stability.fileSync || (await nfs.commit(handle, 0, 0, limits)).verifier === verifier;
    if (!isKept && ++restarts > maxRestarts)
      throw new UnsuitableFile(`${path} cannot be written: the server keeps nothing`);
    done = isKept ? done + count : 0;
    const after = change?.after;
    changedAt = after === undefined ? changedAt : toMs(after.mtime, after.mtimeNs);
  }
  return changedAt;
}
