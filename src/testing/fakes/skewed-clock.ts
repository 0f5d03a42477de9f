import { type Clock, systemClock } from '#base/clock.ts';

/** The clock of one host among several: real time passes, and a test can set the time of day or let more time pass. */
export interface SkewedClock extends Clock {
  /** Somebody sets the time of day: no time passes. */
  jump(ms: number): void;
  /** That much time passes for this host, at once. Nobody who sleeps is woken. */
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
