import type { Time } from '../structures.ts';

/*
 * Node hands times to the system as one double in seconds, which has a step of 0.24 µs in our days (0.48 µs from 2038 on), and
 * what is below a nanosecond is cut off. Most whole microseconds cannot be given to the system, so. Each has a stand-in, the
 * first time from it on that can; who asks for the time of a file whose time is a stand-in is told the microsecond that was
 * meant. A time that a file got by itself is one of these in one case of a thousand, and is then told a step too early.
 */

const perSecond = 1_000_000_000;
const perMicrosecond = 1000;
const widestStep = 480;

/** Nanoseconds that the system makes of such a time. */
const storedNanoseconds = (time: number, seconds: number): number => Math.floor((time - seconds) * perSecond);

const stepAt = (seconds: number): number => 2 ** (Math.floor(Math.log2(Math.max(seconds, 1))) - 52);

/** The first from that time on, never one before it. */
function firstTimeFrom(seconds: number, nanoseconds: number): number {
  const time = seconds + nanoseconds / perSecond;
  return storedNanoseconds(time, seconds) < nanoseconds ? time + stepAt(seconds) : time;
}

/** For utimes. */
export function toUtimesSeconds({ seconds, nanoseconds }: Time): number {
  const time = firstTimeFrom(seconds, nanoseconds);
  const isOurs = nanoseconds % perMicrosecond === 0;
  // A stand-in for the microsecond before it is not to be taken.
  return isOurs || roundNanoseconds(seconds, storedNanoseconds(time, seconds)) >= nanoseconds
    ? time
    : time + stepAt(seconds);
}

/** What is told of a time that the system gave. */
export function roundNanoseconds(seconds: number, nanoseconds: number): number {
  const rest = nanoseconds % perMicrosecond;
  if (rest === 0 || rest > widestStep) return nanoseconds;
  const whole = nanoseconds - rest;
  return storedNanoseconds(firstTimeFrom(seconds, whole), seconds) === nanoseconds ? whole : nanoseconds;
}
