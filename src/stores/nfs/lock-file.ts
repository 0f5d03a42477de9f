import type { Clock } from '#base/clock.ts';
import type { Attributes, FileHandle, SetAttributes, Time } from '#wire/nfs3/index.ts';
import { isRefusal } from '../shelf/files.ts';
import type { GuardTicks } from './guard-ticks.ts';
import { isSameMark, type Marks } from './lock-marks.ts';

// How one file is a lock: docs/designs/store-locks.md has the protocol, its reasons and what it does not promise.

export interface Located {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

/** The calls that a lock needs. Attributes are those after the call. */
export interface LockIo {
  find(path: string): Promise<Located | undefined>;
  /** Exclusively (`EEXIST`), empty, with both of its times as given. */
  create(path: string, mark: Time): Promise<Located>;
  /** Undefined: the file is gone. */
  attributes(handle: FileHandle): Promise<Attributes | undefined>;
  /** 'changed': not done, the time of the file's last change is no longer `ifChangedAt`. */
  setattr(handle: FileHandle, set: SetAttributes, ifChangedAt: Time): Promise<Attributes | 'changed' | 'gone'>;
  remove(path: string): Promise<void>;
}

/** A lock that this process holds. */
export interface HeldLock extends Located {
  readonly mark: Time;
}

export interface LockFileParts {
  readonly io: LockIo;
  readonly marks: Marks;
  readonly ticks: GuardTicks;
  readonly clock: Clock;
}

export interface LockFile {
  /** Makes the file, held. `EEXIST` where it is there. */
  create(path: string): Promise<HeldLock>;
  /**
   * Takes a lock that was found in a state in which it may be taken. Undefined: another process was faster.
   * `isOurs`: nobody has changed it since a release of ours.
   */
  take(found: Located, isOurs: boolean, signal: AbortSignal): Promise<HeldLock | undefined>;
  /** What it is then. Undefined: it is not ours any more, and was left as it is. */
  release(held: HeldLock): Promise<Located | undefined>;
}

/** Longer than any tick. A server that answers so long and gives no other time keeps no time of change at all. */
const tickPatienceMs = 2_500;
/** Other hosts that lost a race against us can have changed our lock in passing; not this often. */
const mostReleases = 8;

export const ctimeOf = ({ ctime, ctimeNs }: Attributes): Time => ({ seconds: ctime, nanoseconds: ctimeNs });
const isSameTime = (a: Time, b: Time): boolean => a.seconds === b.seconds && a.nanoseconds === b.nanoseconds;
const hasMark = ({ mtime, mtimeNs }: Attributes, mark: Time): boolean => isSameMark(mtime, mtimeNs, mark);
const isAnnounced = ({ atime, atimeNs }: Attributes, mark: Time): boolean => isSameMark(atime, atimeNs, mark);

export function createLockFile({ io, marks, ticks, clock }: LockFileParts): LockFile {
  /** Guards are of no use there: hosts exclude each other all the same, but not what is left of calls sent twice. */
  let keepsNoTime = false;

  /** As `LockIo.setattr`. A call without an answer, or with "changed", is resolved by looking. */
  async function set(
    handle: FileHandle,
    to: SetAttributes,
    ifChangedAt: Time,
    isSet: (now: Attributes) => boolean,
    repeats = 1,
  ): Promise<Attributes | 'changed' | 'gone'> {
    const answer = await io.setattr(handle, to, ifChangedAt).catch((cause: unknown) => {
      if (isRefusal(cause)) throw cause;
      return { unanswered: cause };
    });
    if (answer !== 'changed' && (answer === 'gone' || !('unanswered' in answer))) return answer;
    const now = await io.attributes(handle);
    if (now === undefined) return 'gone';
    // The change that our guard failed on may be ours: the first copy of a call that was sent twice.
    if (isSet(now)) return now;
    if (answer === 'changed' || !isSameTime(ctimeOf(now), ifChangedAt)) return 'changed';
    // Sent again with the same guard: whichever copy runs first makes the other one fail.
    if (repeats === 0) throw answer.unanswered;
    return set(handle, to, ifChangedAt, isSet, repeats - 1);
  }

  /**
   * Writes our mark into the time of access, until the server's clock has moved on from what the lock was: else a guard
   * of before would still fit. Undefined: somebody else has changed the lock.
   */
  async function announce(
    { handle, attributes }: Located,
    mark: Time,
    isOurs: boolean,
    signal: AbortSignal,
  ): Promise<Attributes | undefined> {
    const first = ctimeOf(attributes);
    let guard = first;
    for (const since = clock.elapsed(); ; ) {
      const now = await set(handle, { atime: mark }, guard, (seen) => isAnnounced(seen, mark));
      if (now === 'gone' || now === 'changed') return undefined;
      if (now.mtime !== attributes.mtime || now.mtimeNs !== attributes.mtimeNs) return undefined;
      guard = ctimeOf(now);
      // A server that keeps no time of access: `take` does without.
      if (!isAnnounced(now, mark)) return now;
      if (await ticks.isPast(first, guard, isOurs)) return now;
      keepsNoTime ||= isSameTime(first, guard) && clock.elapsed() - since > tickPatienceMs;
      if (keepsNoTime && isSameTime(first, guard)) return now;
      if (clock.elapsed() - since > 2 * tickPatienceMs) return undefined;
      await clock.sleep(ticks.pauseMs(first, guard), signal);
    }
  }

  /** The mark of whoever announced itself last: it may believe that the lock is its own, and we wrote over its mark. */
  async function giveWay(handle: FileHandle, found: Attributes): Promise<void> {
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
      const taken = await set(handle, { mtime: mark }, ctimeOf(announced), (now) => hasMark(now, mark));
      if (taken === 'gone' || taken === 'changed' || !hasMark(taken, mark)) return undefined;
      if (isAnnounced(announced, mark)) {
        if (isAnnounced(taken, mark)) return { handle, attributes: taken, mark };
        await giveWay(handle, taken);
        return undefined;
      }
      // The server keeps no time of access. What it keeps is at least ours.
      const now = await io.attributes(handle);
      return now !== undefined && hasMark(now, mark) ? { handle, attributes: now, mark } : undefined;
    },
    release: async ({ handle, attributes, mark }) => {
      let now = attributes;
      for (let again = 0; again < mostReleases; again++) {
        const free = marks.free();
        const answer = await set(handle, { mtime: free }, ctimeOf(now), (seen) => hasMark(seen, free));
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
