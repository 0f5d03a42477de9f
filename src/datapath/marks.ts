import { randomInt } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Attributes, Time } from '#wire/nfs3/structures.ts';

/**
 * Modification times that tell what we made from what others made: the server's clock as far as it is known, with digits at
 * random below the second. In whole microseconds, because some servers keep no more.
 */
export interface Marks {
  next(): Time;
  /** Something was changed just now: its time is the server's. */
  saw(changed: Attributes | undefined): void;
  /** A file was made with this time, and this is told of it. */
  made(mark: Time, told: Attributes | undefined): void;
  /** Whether the server keeps such a time, as far as the last file tells. Not known before the first. */
  readonly areKept: boolean | undefined;
}

export function createMarks(clock: Clock): Marks {
  let seconds: number | undefined;
  let at = 0;
  let areKept: boolean | undefined;
  return {
    next: () => ({
      seconds:
        seconds === undefined ? Math.floor(clock.now() / 1000) : seconds + Math.floor((clock.elapsed() - at) / 1000),
      nanoseconds: randomInt(1_000_000) * 1000,
    }),
    saw: (changed) => {
      if (changed === undefined) return;
      seconds = changed.ctime;
      at = clock.elapsed();
    },
    made: (mark, told) => {
      if (told !== undefined) areKept = isMarked(told, mark);
    },
    get areKept() {
      return areKept;
    },
  };
}

/** The same as eight bytes, which a server keeps to know an exclusive CREATE by. */
export const verifierOf = ({ seconds, nanoseconds }: Time): bigint =>
  (BigInt(seconds >>> 0) << 32n) | BigInt(nanoseconds);

export const isMarked = ({ mtime, mtimeNs }: Attributes, mark: Time): boolean =>
  mtime === mark.seconds && mtimeNs === mark.nanoseconds;
