import type { Clock } from '#base/clock.ts';
import type { Attributes, FileHandle, SetAttributes, Time } from '#wire/nfs3/index.ts';
import { isDefiniteFailure } from '../file-store/files.ts';
import type { GuardTicks } from './guard-ticks.ts';
import { isSameMark, type Marks } from './lock-marks.ts';

// A file as a lock. docs/designs/store-locks.md describes the protocol, its reasons and its limits.

export interface FoundFile {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

/** The calls that a lock needs. Attributes are those after the call. */
export interface LockIo {
  find(path: string): Promise<FoundFile | undefined>;
  /** Creates an empty file exclusively (`EEXIST`), with atime and mtime set to `mark`. */
  create(path: string, mark: Time): Promise<FoundFile>;
  /** Undefined: the file is gone. */
  attributes(handle: FileHandle): Promise<Attributes | undefined>;
  /** 'changed': the call had no effect, because the file's ctime is no longer `ifChangedAt`. */
  setattr(handle: FileHandle, set: SetAttributes, ifChangedAt: Time): Promise<Attributes | 'changed' | 'gone'>;
  remove(path: string): Promise<void>;
}

/** A lock that this process holds. */
export interface HeldLock extends FoundFile {
  readonly mark: Time;
}

export interface LockFileParts {
  readonly io: LockIo;
  readonly marks: Marks;
  readonly ticks: GuardTicks;
  readonly clock: Clock;
}

export interface LockFile {
  /** Creates the file as held by us. Throws `EEXIST` if it exists. */
  create(path: string): Promise<HeldLock>;
  /**
   * Takes a lock that is free or abandoned. Returns undefined if another process took it first.
   * `isOurs`: no host has changed the file since our own release.
   */
  take(found: FoundFile, isOurs: boolean, signal: AbortSignal): Promise<HeldLock | undefined>;
  /** Returns the file after the release. Undefined: another host took the lock over, and we left it alone. */
  release(held: HeldLock): Promise<FoundFile | undefined>;
}

/** Longer than any timestamp granularity. A server whose ctime has not moved after this time does not maintain ctimes. */
const tickTimeoutMs = 2_500;
/** Hosts that lost a race against us may still change our lock file, but not this often. */
const maxReleaseAttempts = 8;

export const ctimeOf = ({ ctime, ctimeNs }: Attributes): Time => ({ seconds: ctime, nanoseconds: ctimeNs });
const isSameTime = (a: Time, b: Time): boolean => a.seconds === b.seconds && a.nanoseconds === b.nanoseconds;
const hasMark = ({ mtime, mtimeNs }: Attributes, mark: Time): boolean => isSameMark(mtime, mtimeNs, mark);
const isAnnounced = ({ atime, atimeNs }: Attributes, mark: Time): boolean => isSameMark(atime, atimeNs, mark);

export function createLockFile({ io, marks, ticks, clock }: LockFileParts): LockFile {
  /** The server does not maintain ctimes, so guards never fail. Hosts still exclude each other; late copies of calls are not rejected. */
  let lacksCtime = false;

  /** Like `LockIo.setattr`, but resolves a lost reply or "changed" by reading the attributes back. */
  async function setAndVerify(
    handle: FileHandle,
    changes: SetAttributes,
    ifChangedAt: Time,
    isSet: (now: Attributes) => boolean,
    repeats = 1,
  ): Promise<Attributes | 'changed' | 'gone'> {
    const answer = await io.setattr(handle, changes, ifChangedAt).catch((cause: unknown) => {
      if (isDefiniteFailure(cause)) throw cause;
      return { unanswered: cause };
    });
    if (answer !== 'changed' && (answer === 'gone' || !('unanswered' in answer))) return answer;
    const now = await io.attributes(handle);
    if (now === undefined) return 'gone';
    // Our own first copy may have made the change that the guard of the second copy failed on.
    if (isSet(now)) return now;
    if (answer === 'changed' || !isSameTime(ctimeOf(now), ifChangedAt)) return 'changed';
    // Resend with the same guard: the copy that runs first makes the other one fail.
    if (repeats === 0) throw answer.unanswered;
    return setAndVerify(handle, changes, ifChangedAt, isSet, repeats - 1);
  }

  /**
   * Writes our mark into atime until the file's ctime differs from the one we found; otherwise a call with the old guard could still
   * succeed. Returns undefined if another process changed the lock.
   */
  async function announce(
    { handle, attributes }: FoundFile,
    mark: Time,
    isOurs: boolean,
    signal: AbortSignal,
  ): Promise<Attributes | undefined> {
    const first = ctimeOf(attributes);
    let guard = first;
    for (const since = clock.elapsed(); ; ) {
      const now = await setAndVerify(handle, { atime: mark }, guard, (seen) => isAnnounced(seen, mark));
      if (now === 'gone' || now === 'changed') return undefined;
      if (now.mtime !== attributes.mtime || now.mtimeNs !== attributes.mtimeNs) return undefined;
      guard = ctimeOf(now);
      // The server does not store atime; `take` handles that.
      if (!isAnnounced(now, mark)) return now;
      if (await ticks.isPast(first, guard, isOurs)) return now;
      lacksCtime ||= isSameTime(first, guard) && clock.elapsed() - since > tickTimeoutMs;
      if (lacksCtime && isSameTime(first, guard)) return now;
      if (clock.elapsed() - since > 2 * tickTimeoutMs) return undefined;
      await clock.sleep(ticks.pauseMs(first, guard), signal);
    }
  }

  /** Restores the mark of the process that announced itself last. We overwrote it, and that process may already hold the lock. */
  async function restoreWinner(handle: FileHandle, found: Attributes): Promise<void> {
    const winner = { seconds: found.atime, nanoseconds: found.atimeNs };
    await io.setattr(handle, { mtime: winner }, ctimeOf(found));
  }

  return {
    create: async (path) => {
      const mark = marks.next();
      return { ...(await io.create(path, mark)), mark };
    },
    take: async (found, isOurs, signal) => {
      const { handle } = found;
      const mark = marks.next();
      const announced = await announce(found, mark, isOurs, signal);
      if (announced === undefined) return undefined;
      const taken = await setAndVerify(handle, { mtime: mark }, ctimeOf(announced), (now) => hasMark(now, mark));
      if (taken === 'gone' || taken === 'changed' || !hasMark(taken, mark)) return undefined;
      if (isAnnounced(announced, mark)) {
        if (isAnnounced(taken, mark)) return { handle, attributes: taken, mark };
        await restoreWinner(handle, taken);
        return undefined;
      }
      // The server does not store atime, so check mtime at least.
      const now = await io.attributes(handle);
      return now !== undefined && hasMark(now, mark) ? { handle, attributes: now, mark } : undefined;
    },
    release: async ({ handle, attributes, mark }) => {
      let now = attributes;
      for (let attempt = 0; attempt < maxReleaseAttempts; attempt++) {
        const free = marks.free();
        const answer = await setAndVerify(handle, { mtime: free }, ctimeOf(now), (seen) => hasMark(seen, free));
        if (answer === 'gone') return undefined;
        if (answer !== 'changed') return { handle, attributes: answer };
        const found = await io.attributes(handle);
        if (found === undefined || !hasMark(found, mark)) return undefined;
        now = found;
      }
      return undefined;
    },
  };
}
