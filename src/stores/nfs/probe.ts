import { randomBytes } from 'node:crypto';
import { type FileHandle, type NfsClient, NfsError, stability } from '#wire/nfs3/index.ts';

export interface ProbeLimits {
  readonly signal: AbortSignal;
  readonly deadlineMs: number;
}

/**
 * Writes and removes a file, to check whether that works. The file is removed after any failure; if this process is killed, a later check
 * removes it (probe-leftovers.ts).
 */
export interface Probe extends AsyncDisposable {
  /** When it was written, in seconds by the server's clock. */
  readonly writtenAt: number | undefined;
  write(): Promise<string>;
  sync(): Promise<string>;
  remove(): Promise<string>;
}

/** Limit for the cleanup after a failure: don't wait long for a server that does not answer. */
const cleanUpMs = 2_000;

export const probeText: Buffer = Buffer.from('probe\n');
/** No volume can have this name. */
const prefix = '.stowage-check-';
const pattern = /^\.stowage-check-[0-9a-f]{12}$/;

export const isProbeName = (name: string): boolean => pattern.test(name);

/** `as`: the user id in our calls. */
export function createProbe(nfs: NfsClient, root: FileHandle, as: number, within: ProbeLimits): Probe {
  const name = `${prefix}${randomBytes(6).toString('hex')}`;
  let writtenAt: number | undefined;
  let file: FileHandle | undefined;
  let mayBeThere = false;

  return {
    get writtenAt() {
      return writtenAt;
    },
    write: async () => {
      mayBeThere = true;
      try {
        const created = await nfs.create(root, name, { mode: 'guarded', set: { mode: 0o600 } }, within);
        file = created.handle;
      } catch (cause) {
        // After an error of the server there is no file. Without an answer there may be one.
        mayBeThere = !(cause instanceof NfsError);
        throw cause;
      }
      const { count } = await nfs.write(file, 0, probeText, stability.unstable, within);
      if (count !== probeText.length) throw new Error(`the server wrote ${count} of ${probeText.length} bytes`);
      const { uid, gid, mtime } = await nfs.getattr(file, within);
      writtenAt = mtime;
      const other = as === 0 && uid !== 0 ? ': the server maps root to another user (root_squash)' : '';
      return `created a file, owned by ${uid}:${gid}${other}`;
    },
    sync: async () => {
      if (file !== undefined) await nfs.commit(file, 0, 0, within);
      return 'it was made durable';
    },
    remove: async () => {
      await nfs.remove(root, name, within);
      mayBeThere = false;
      return 'it was removed';
    },
    [Symbol.asyncDispose]: async () => {
      const deadlineMs = Math.min(within.deadlineMs, cleanUpMs);
      if (mayBeThere) await nfs.remove(root, name, { deadlineMs }).catch(() => undefined);
    },
  };
}
