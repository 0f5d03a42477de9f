import { createHash, randomInt } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import type { Attributes, Time } from '#wire/nfs3/index.ts';
import { isErrno, isFull } from '../shelf/files.ts';
import { type Others, takenForDeadMs } from '../shelf/place.ts';
import type { NfsFiles } from './files.ts';

/** Both longer than the time after which who holds something stops by himself: see `takenForDeadMs`. */
const deadRecord = { afterMs: takenForDeadMs, steadyMs: 2_000 } as const;
const deadLock = { afterMs: 2 * takenForDeadMs, steadyMs: 10_000 } as const;
/** A longer pause between two looks, of ours or of a server that stood still, begins the steady time anew. */
const longestGapMs = 2_000;
const lockPatienceMs = 15_000;
const lockPauseMs = 100;
const mostWatched = 10_000;

/** Times of last change that a file of ours has while nothing is written to it: the seconds tell the instance. */
export function createMarks(instance: string): { next(): Time; isOurs(found: Attributes): boolean } {
  const seconds = createHash('sha256').update(instance).digest().readUInt32BE(0) >>> 1;
  return {
    next: () => ({ seconds, nanoseconds: randomInt(1e9) }),
    isOurs: ({ mtime, size }) => mtime === seconds && size === 0,
  };
}

export interface OthersParts {
  readonly files: NfsFiles;
  readonly clock: Clock;
  readonly marks: ReturnType<typeof createMarks>;
  readonly store: string;
  /** `.stowage/locks` */
  readonly folder: string;
  readonly usesOf: Others['usesOf'];
}

interface Watched {
  readonly seen: string;
  readonly since: number;
  readonly steadySince: number;
  readonly last: number;
}

/**
 * One host at a time changes a volume: it makes `.stowage/locks/<id>` exclusively, and removes it. What a host left that
 * died is found by watching it not change, while the server answers; no two clocks are compared. It is taken over by
 * changing its mark on the condition that nobody else has: of several who try, the server lets one.
 */
export function createOthers({ files, clock, marks, store, folder, usesOf }: OthersParts): Others {
  /** By this process, at this moment, since when. Undefined: there was no room for a lock. */
  const held = new Map<string, number | undefined>();
  const watched = new Map<string, Watched>();

  function isDead(path: string, found: Attributes, { afterMs, steadyMs }: typeof deadLock | typeof deadRecord) {
    const seen = `${found.fileId} ${found.ctime} ${found.ctimeNs} ${found.size}`;
    const now = clock.elapsed();
    const before = watched.get(path);
    const isSame = before?.seen === seen;
    if (!isSame && watched.size >= mostWatched) watched.clear();
    const since = isSame ? before.since : now;
    const steadySince = isSame && now - before.last <= longestGapMs ? before.steadySince : now;
    watched.set(path, { seen, since, steadySince, last: now });
    return now - since > afterMs && now - steadySince > steadyMs;
  }

  async function takeOver(path: string, found: Attributes): Promise<boolean> {
    const isTaken = await files.remark(path, found);
    if (isTaken) watched.delete(path);
    return isTaken;
  }

  async function makeLock(id: string): Promise<boolean> {
    const path = `${folder}/${id}`;
    const since = clock.elapsed();
    try {
      await files.create(path);
      held.set(id, since);
      return true;
    } catch (cause) {
      // A full store must still be emptied; the risk is that of two hosts working on one volume at that moment.
      if (isFull(cause)) return true;
      if (!isErrno(cause, 'EEXIST')) throw cause;
    }
    const found = await files.attributes(path);
    if (found === undefined || !(marks.isOurs(found) || isDead(path, found, deadLock))) return false;
    if (!(await takeOver(path, found))) return false;
    held.set(id, since);
    return true;
  }

  async function tryLock(id: string): Promise<boolean> {
    if (held.has(id)) return false;
    // Before the call: two of this process must not both find the lock to be an earlier one of ours.
    held.set(id, undefined);
    let isHeld = false;
    try {
      isHeld = await makeLock(id);
      return isHeld;
    } finally {
      if (!isHeld) held.delete(id);
    }
  }

  async function lock(id: VolumeId, signal: AbortSignal): Promise<void> {
    const since = clock.elapsed();
    while (!(await tryLock(id))) {
      if (clock.elapsed() - since > lockPatienceMs) throw locked(id, store);
      await clock.sleep(lockPauseMs, signal);
    }
    watched.delete(`${folder}/${id}`);
  }

  async function release(path: string, since: number | undefined): Promise<void> {
    if (since === undefined) return;
    const isLong = clock.elapsed() - since > takenForDeadMs;
    // Somebody may have taken us for dead.
    if (isLong && !marks.isOurs((await files.attributes(path)) ?? notThere)) return;
    await files.unlink(path);
  }

  async function unlock(id: VolumeId): Promise<void> {
    // What is left behind is known as ours by its mark.
    await release(`${folder}/${id}`, held.get(id)).catch(() => undefined);
    held.delete(id);
  }

  return {
    hold: async (ids, signal) => {
      await using stack = new AsyncDisposableStack();
      for (const id of [...new Set(ids)].sort()) {
        await lock(id, signal);
        stack.defer(() => unlock(id));
      }
      return stack.move();
    },
    isHeld: async (id) => {
      const found = await files.attributes(`${folder}/${id}`);
      return found !== undefined && !marks.isOurs(found);
    },
    usesOf,
    take: (path) => files.create(path),
    takeOver: async (path, isTorn) => {
      const found = await files.attributes(path);
      if (found === undefined || !(marks.isOurs(found) || isDead(path, found, deadRecord))) return false;
      return (await isTorn()) && (await takeOver(path, found));
    },
  };
}

const notThere = { mtime: -1, size: -1 } as Attributes;

function locked(id: string, store: string): StowageError {
  return new StowageError(`another Stowage is at work on volume ${id} in store ${store}`, {
    code: 'busy',
    reason: 'volume-locked-elsewhere',
    action: `Try again in a moment. What a host left that died while at work can be taken over after ${deadLock.afterMs / 60_000} minutes.`,
  });
}
