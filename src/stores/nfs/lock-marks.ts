import { randomInt } from 'node:crypto';
import type { ProcessMarks } from '#core/ports.ts';
import type { Attributes, Time } from '#wire/nfs3/index.ts';

/**
 * A file's mtime names the process that holds the lock or created the empty record. It is a date before 1987, which no clock
 * sets. The seconds identify the process; the milliseconds distinguish its marks. Servers that store whole seconds
 * are supported.
 */
const minMarkSeconds = 2;
const endMarkSeconds = 2 ** 29;
/** The seconds of a free lock. Older versions made lock files with a hash here: any other value is "held". */
const freeMarkSeconds = 1;

/** The middle of a millisecond, so that rounding on the server or in a conversion does not matter. */
const randomNanoseconds = (): number => randomInt(1000) * 1_000_000 + 500_000;

export const newProcessMark = (): number => randomInt(minMarkSeconds, endMarkSeconds);
export const isProcessMark = (value: unknown): value is number =>
  typeof value === 'number' && Number.isInteger(value) && value >= minMarkSeconds && value < endMarkSeconds;

export interface Marks {
  /** A new mark of this process, different from its last ones. */
  next(): Time;
  /** A mark for releasing a lock. */
  free(): Time;
  /** Whether this process set the mark, or an earlier process that is certainly dead. */
  isOurs(mtime: number): boolean;
}

export function createMarks({ own, dead }: ProcessMarks): Marks {
  const deadMarks = new Set(dead);
  return {
    next: () => ({ seconds: own, nanoseconds: randomNanoseconds() }),
    free: () => ({ seconds: freeMarkSeconds, nanoseconds: randomNanoseconds() }),
    isOurs: (mtime) => mtime === own || deadMarks.has(mtime),
  };
}

export const isFreeMark = ({ mtime }: Pick<Attributes, 'mtime'>): boolean => mtime === freeMarkSeconds;
/** For the spare lock, which is an existing file: it has an ordinary date until it is taken for the first time. */
export const isProcessMarkTime = ({ mtime }: Pick<Attributes, 'mtime'>): boolean =>
  mtime >= minMarkSeconds && mtime < endMarkSeconds;

/** Whether this is the time that a server returns after `mark` was set. */
export function isSameMark(seconds: number, nanoseconds: number, mark: Time): boolean {
  const ms = Math.floor(nanoseconds / 1_000_000);
  return seconds === mark.seconds && (nanoseconds === 0 || ms === Math.floor(mark.nanoseconds / 1_000_000));
}
