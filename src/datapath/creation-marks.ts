import { randomInt } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Attributes, SetAttributes, Time } from '#wire/nfs3/structures.ts';

/** A time, and the attributes that set it at creation. */
export interface CreationMark {
  readonly time: Time;
  readonly set: Pick<SetAttributes, 'atime' | 'mtime'>;
}

/**
 * Times that identify objects created by us: a random moment in the last second by the server's clock, as far as known.
 * In whole microseconds, because some servers keep no more.
 *
 * Set as atime, because mtimes are compared with each other (make, `find -newer`), and only the server's own are in
 * order. Set as mtime on servers that do not keep atime.
 */
export interface CreationMarks {
  nextTime(): Time;
  markAt(time: Time): CreationMark;
  /** Records the ctime of an object that has just changed: it is the server's time. */
  recordServerTime(changed: Attributes | undefined): void;
  /** Records which times the server kept for a new file. */
  recordCreation(mark: CreationMark, attributes: Attributes | undefined): void;
  /** Whether the server kept the time of the last new file. Undefined before the first file. */
  readonly arePreserved: boolean | undefined;
}

const microsecondsPerSecond = 1_000_000;
/** File systems use the time of the kernel's last tick, at most 10 ms old. */
const tickMicroseconds = 10_000;

export function createCreationMarks(clock: Clock): CreationMarks {
  let latest: { readonly ms: number; readonly at: number } | undefined;
  let usesAtime = true;
  let arePreserved: boolean | undefined;
  /** The earliest possible server time; our own clock until the first reply. */
  const nowMs = (): number => (latest === undefined ? clock.now() : latest.ms + clock.elapsed() - latest.at);
  return {
    nextTime: () => {
      const microseconds = Math.max(0, Math.floor(nowMs() * 1000) - randomInt(tickMicroseconds, microsecondsPerSecond));
      return {
        seconds: Math.floor(microseconds / microsecondsPerSecond),
        nanoseconds: (microseconds % microsecondsPerSecond) * 1000,
      };
    },
    markAt: (time) => ({ time, set: usesAtime ? { atime: time } : { mtime: time } }),
    recordServerTime: (changed) => {
      if (changed !== undefined) latest = { ms: changed.ctime * 1000 + changed.ctimeNs / 1e6, at: clock.elapsed() };
    },
    recordCreation: ({ time, set }, attributes) => {
      // A file that was created concurrently with the other kind of mark does not count.
      if (attributes === undefined || usesAtime !== (set.atime !== undefined)) return;
      const isKept = isMarked(attributes, time);
      // The first file decides. A file read meanwhile has a new atime, which is no reason to change.
      const isAtimeLost = !isKept && usesAtime && arePreserved === undefined;
      if (isAtimeLost) usesAtime = false;
      else arePreserved = isKept;
    },
    get arePreserved() {
      return arePreserved;
    },
  };
}

/** The time as the 8-byte verifier of an exclusive CREATE. */
export const verifierOf = ({ seconds, nanoseconds }: Time): bigint =>
  (BigInt(seconds >>> 0) << 32n) | BigInt(nanoseconds);

/** Checks both times: a predecessor that knew less about the server may have used the other one. */
export const isMarked = ({ atime, atimeNs, mtime, mtimeNs }: Attributes, { seconds, nanoseconds }: Time): boolean =>
  (atime === seconds && atimeNs === nanoseconds) || (mtime === seconds && mtimeNs === nanoseconds);
