import type { Time } from '../structures.ts';

/**
 * Node passes a time to the kernel as one double in seconds. Its resolution is 0.24 µs today (0.48 µs from 2038 on), and
 * fractions of a nanosecond are cut off. So most whole microseconds cannot be passed exactly. Each one is stored as a stand-in:
 * the first representable time that is not before it. For a file whose time is a stand-in, the server reports the whole
 * microsecond. One in a thousand of the times that the kernel sets is a stand-in by chance, and is reported one step too early.
 */

const nanosecondsPerSecond = 1_000_000_000;
const nanosecondsPerMicrosecond = 1000;
const widestStepNs = 480;

/** The nanoseconds that the kernel stores for a time of whole `seconds` and a fraction. */
const storedNanoseconds = (time: number, seconds: number): number =>
  Math.floor((time - seconds) * nanosecondsPerSecond);

const stepAt = (seconds: number): number => 2 ** (Math.floor(Math.log2(Math.max(seconds, 1))) - 52);

/** The first representable time that is not before the given one. */
function firstTimeFrom(seconds: number, nanoseconds: number): number {
  const time = seconds + nanoseconds / nanosecondsPerSecond;
  return storedNanoseconds(time, seconds) < nanoseconds ? time + stepAt(seconds) : time;
}

/** For utimes. */
export function toUtimesSeconds({ seconds, nanoseconds }: Time): number {
  const time = firstTimeFrom(seconds, nanoseconds);
  const isOurs = nanoseconds % nanosecondsPerMicrosecond === 0;
  // Do not use the stand-in of the microsecond before it.
  return isOurs || roundNanoseconds(seconds, storedNanoseconds(time, seconds)) >= nanoseconds
    ? time
    : time + stepAt(seconds);
}

/** The nanoseconds to report for a time that the kernel stores. */
export function roundNanoseconds(seconds: number, nanoseconds: number): number {
  const rest = nanoseconds % nanosecondsPerMicrosecond;
  if (rest === 0 || rest > widestStepNs) return nanoseconds;
  const whole = nanoseconds - rest;
  return storedNanoseconds(firstTimeFrom(seconds, whole), seconds) === nanoseconds ? whole : nanoseconds;
}
