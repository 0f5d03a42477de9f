import { isErrno } from '#base/errno.ts';
import type { Log } from '#base/log.ts';
import { type Attributes, fileType } from '#wire/nfs3/index.ts';
import { isFull } from '../file-store/files.ts';
import { presumedDeadMs } from '../file-store/store-root.ts';
import type { FoundFile, HeldLock, LockFile, LockIo } from './lock-file.ts';
import { isFreeMark, isProcessMarkTime, type Marks } from './lock-marks.ts';
import type { StaleFileWatch } from './stale-file-watch.ts';

/** Longer than the time after which a holder stops by itself: see `takenForDeadMs`. */
export const deadLock = { afterMs: 2 * presumedDeadMs, steadyMs: 10_000 } as const;
/** This process takes a lock that it has released before without a LOOKUP. It remembers at most this many locks. */
const maxReleasedLocks = 10_000;
/** Retries if the lock file is created or removed between two of our calls. */
const maxLookups = 3;

export interface VolumeLocksParts {
  readonly io: LockIo;
  readonly lockFile: LockFile;
  readonly marks: Marks;
  readonly watch: StaleFileWatch;
  readonly log: Log;
  /** A file that exists in every store. It is the lock of volumes that have no lock file while the store is full. */
  readonly spareLock: string;
  /** The locks that this process holds, in all stores that it has open. */
  readonly held: Set<string>;
  /** The key of a path in `held`. Two stores in the same place give the same key. */
  keyOf(path: string): string;
}

export interface TakenLock {
  /** The file that is the lock: the volume's own lock file or the spare lock. */
  readonly path: string;
  readonly lock: HeldLock;
  /** The volume had no lock file. */
  readonly isNew: boolean;
  /**
   * The spare lock was not yet seen free while the lock file existed. Until then another host that found no space for a lock file may hold
   * the volume by the spare lock; afterwards none can.
   */
  readonly isSpareUnchecked: boolean;
  readonly keys: readonly string[];
}

export interface VolumeLocks {
  /** Returns undefined if another host or this process holds the lock. */
  tryTake(path: string, signal: AbortSignal): Promise<TakenLock | undefined>;
  /**
   * `remove`: also removes the lock file. `unchecked`: the spare lock was not seen free. Never throws: a lock that cannot be released
   * keeps our mark, and this process can take it again.
   */
  release(taken: TakenLock, how: 'keep' | 'remove' | 'unchecked'): Promise<void>;
  /** No other host holds the spare lock. */
  isSpareFree(): Promise<boolean>;
}

type UntrackedLock = Omit<TakenLock, 'keys'>;

export function createVolumeLocks(parts: VolumeLocksParts): VolumeLocks {
  const { io, lockFile, marks, watch, spareLock, held, keyOf } = parts;
  /** Lock files as our own release left them. */
  const releasedLocks = new Map<string, FoundFile>();
  let spareFile: FoundFile | undefined;

  const isAbandoned = (path: string, found: Attributes): boolean =>
    marks.isOurs(found.mtime) || watch.isDead(path, found, deadLock);

  async function takeOwn(path: string, signal: AbortSignal): Promise<UntrackedLock | 'full' | undefined> {
    for (let lookups = 0; lookups < maxLookups; lookups++) {
      const known = releasedLocks.get(path);
      releasedLocks.delete(path);
      const found = known ?? (await io.find(path));
      if (found === undefined) {
        try {
          return { path, lock: await lockFile.create(path), isNew: true, isSpareUnchecked: true };
        } catch (cause) {
          if (isFull(cause)) return 'full';
          if (!isErrno(cause, 'EEXIST')) throw cause;
          continue;
        }
      }
      const { attributes } = found;
      if (attributes.type !== fileType.regular || !(isFreeMark(attributes) || isAbandoned(path, attributes)))
        return undefined;
      const lock = await lockFile.take(found, known !== undefined, signal);
      if (lock !== undefined) {
        watch.forget(path);
        return { path, lock, isNew: false, isSpareUnchecked: known === undefined };
      }
      if (known === undefined) return undefined;
    }
    return undefined;
  }

  /** A host that creates this volume's lock file later waits for the spare lock: see `isSpareUnchecked`. */
  async function takeSpare(path: string, signal: AbortSignal): Promise<UntrackedLock | undefined> {
    const found = await io.find(spareLock);
    if (found === undefined) throw Object.assign(new Error(`${spareLock} does not exist`), { code: 'ENOENT' });
    if (isProcessMarkTime(found.attributes) && !isAbandoned(spareLock, found.attributes)) return undefined;
    const lock = await lockFile.take(found, false, signal);
    if (lock === undefined) return undefined;
    watch.forget(spareLock);
    if ((await io.find(path)) === undefined) return { path: spareLock, lock, isNew: false, isSpareUnchecked: false };
    await lockFile.release(lock);
    return undefined;
  }

  async function take(path: string, keys: string[], signal: AbortSignal): Promise<UntrackedLock | undefined> {
    const ownLock = await takeOwn(path, signal);
    if (ownLock !== 'full') return ownLock;
    const key = keyOf(spareLock);
    if (held.has(key)) return undefined;
    held.add(key);
    keys.push(key);
    return takeSpare(path, signal);
  }

  return {
    tryTake: async (path, signal) => {
      const key = keyOf(path);
      if (held.has(key)) return undefined;
      // Add the key before the first call. Otherwise two operations of this process could both find our mark and both take the lock.
      held.add(key);
      const keys = [key];
      let taken: UntrackedLock | undefined;
      try {
        taken = await take(path, keys, signal);
        return taken && { ...taken, keys };
      } finally {
        if (taken === undefined) for (const heldKey of keys) held.delete(heldKey);
      }
    },
    release: async ({ path, lock, keys }, how) => {
      try {
        if (how === 'remove' && path !== spareLock) return await io.remove(path);
        const released = await lockFile.release(lock);
        if (released === undefined) parts.log.warn('another host took over a lock that we held', { lock: path });
        else if (path !== spareLock && how !== 'unchecked') {
          if (releasedLocks.size >= maxReleasedLocks) releasedLocks.clear();
          releasedLocks.set(path, released);
        }
      } catch (cause) {
        parts.log.debug('a lock could not be released', { lock: path, cause: String(cause) });
      } finally {
        for (const key of keys) held.delete(key);
      }
    },
    isSpareFree: async () => {
      const now = spareFile && (await io.attributes(spareFile.handle));
      if (now === undefined) spareFile = await io.find(spareLock);
      const attributes = now ?? spareFile?.attributes;
      return attributes === undefined || !isProcessMarkTime(attributes) || isAbandoned(spareLock, attributes);
    },
  };
}
