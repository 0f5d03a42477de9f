import { type Clock, systemClock } from '#base/clock.ts';

/** The clock of one of several hosts. Real time passes, and a test can set the time of day or let more time pass. */
export interface SkewedClock extends Clock {
  /** Sets the time of day without letting time pass. */
  jump(ms: number): void;
  /** Lets that much time pass for this host at once. Does not wake sleepers. */
  pass(ms: number): void;
}

export function createSkewedClock(skew = 0): SkewedClock {
  const real = systemClock();
  let offset = skew;
  let passed = 0;
  return {
    ...real,
    now: () => real.now() + offset + passed,
    elapsed: () => real.elapsed() + passed,
    jump: (ms) => {
      offset += ms;
    },
    pass: (ms) => {
      passed += ms;
    },
  };
}
