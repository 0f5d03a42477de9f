import { randomInt } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Attributes, SetAttributes, Time } from '#wire/nfs3/structures.ts';

/** A time, and how something is made with it. */
export interface CreationMark {
  readonly time: Time;
  readonly set: Pick<SetAttributes, 'atime' | 'mtime'>;
}

/**
 * Times that tell what we made from what others made: a moment at random in the last second, by the server's clock as far as
 * it is known. In whole microseconds, because some servers keep no more.
 *
 * Of last access, because times of modification are compared with each other (make, `find -newer`), and only the server's own
 * are in order. Of modification on servers that do not keep the other one.
 */
export interface CreationMarks {
  next(): Time;
  at(time: Time): CreationMark;
  /** Something was changed just now: its time is the server's. */
  sawChange(changed: Attributes | undefined): void;
  /** A file was made with this mark, and this is told of it. */
  made(mark: CreationMark, told: Attributes | undefined): void;
  /** Whether the server keeps such a time, as far as the last file tells. Not known before the first. */
  readonly areKept: boolean | undefined;
}

/** In microseconds. Times that file systems give are those of the kernel's last tick: 10 ms old at most. */
const second = 1_000_000;
const tick = 10_000;

export function createCreationMarks(clock: Clock): CreationMarks {
  let latest: { readonly ms: number; readonly at: number } | undefined;
  let isOfAccess = true;
  let areKept: boolean | undefined;
  /** At least so late is it on the server, or whatever it is here as long as the server has told nothing. */
  const nowMs = (): number => (latest === undefined ? clock.now() : latest.ms + clock.elapsed() - latest.at);
  return {
    next: () => {
      const microseconds = Math.max(0, Math.floor(nowMs() * 1000) - randomInt(tick, second));
      return { seconds: Math.floor(microseconds / second), nanoseconds: (microseconds % second) * 1000 };
    },
    at: (time) => ({ time, set: isOfAccess ? { atime: time } : { mtime: time } }),
    sawChange: (changed) => {
      if (changed !== undefined) latest = { ms: changed.ctime * 1000 + changed.ctimeNs / 1e6, at: clock.elapsed() };
    },
    made: ({ time, set }, told) => {
      // Others that were under way tell nothing of the kind that is used now.
      if (told === undefined || isOfAccess !== (set.atime !== undefined)) return;
      const isKept = isMarked(told, time);
      // The first file tells. One that is read meanwhile is no reason to give up what was kept before.
      const isOther = !isKept && isOfAccess && areKept === undefined;
      if (isOther) isOfAccess = false;
      else areKept = isKept;
    },
    get areKept() {
      return areKept;
    },
  };
}

/** The same as eight bytes, which a server keeps to know an exclusive CREATE by. */
export const verifierOf = ({ seconds, nanoseconds }: Time): bigint =>
  (BigInt(seconds >>> 0) << 32n) | BigInt(nanoseconds);

/** By either time: it may have been made by a predecessor, which may have found out less of the server. */
export const isMarked = ({ atime, atimeNs, mtime, mtimeNs }: Attributes, { seconds, nanoseconds }: Time): boolean =>
  (atime === seconds && atimeNs === nanoseconds) || (mtime === seconds && mtimeNs === nanoseconds);
