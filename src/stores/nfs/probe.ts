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
const cleanUpTimeoutMs = 2_000;

export const probeText: Buffer = Buffer.from('probe\n');
/** No volume can have this name. */
const probePrefix = '.stowage-check-';
const probePattern = /^\.stowage-check-[0-9a-f]{12}$/;

export const isProbeName = (name: string): boolean => probePattern.test(name);

/** `ownUid`: the user id in our calls. */
export function createProbe(nfs: NfsClient, root: FileHandle, ownUid: number, limits: ProbeLimits): Probe {
  const name = `${probePrefix}${randomBytes(6).toString('hex')}`;
  let writtenAt: number | undefined;
  let file: FileHandle | undefined;
  let mayExist = false;

  return {
    get writtenAt() {
      return writtenAt;
    },
    write: async () => {
      mayExist = true;
      try {
        const created = await nfs.create(root, name, { mode: 'guarded', set: { mode: 0o600 } }, limits);
        file = created.handle;
      } catch (cause) {
        // After an error of the server there is no file. Without an answer there may be one.
        mayExist = !(cause instanceof NfsError);
        throw cause;
      }
      const { count } = await nfs.write(file, 0, probeText, stability.unstable, limits);
      if (count !== probeText.length) throw new Error(`the server wrote ${count} of ${probeText.length} bytes`);
      const { uid, gid, mtime } = await nfs.getattr(file, limits);
      writtenAt = mtime;
      const other = ownUid === 0 && uid !== 0 ? ': the server maps root to another user (root_squash)' : '';
      return `created a file, owned by ${uid}:${gid}${other}`;
    },
    sync: async () => {
      if (file !== undefined) await nfs.commit(file, 0, 0, limits);
      return 'it was made durable';
    },
    remove: async () => {
      await nfs.remove(root, name, limits);
      mayExist = false;
      return 'it was removed';
    },
    [Symbol.asyncDispose]: async () => {
      const deadlineMs = Math.min(limits.deadlineMs, cleanUpTimeoutMs);
      if (mayExist) await nfs.remove(root, name, { deadlineMs }).catch(() => undefined);
    },
  };
}
