import { type Clock, systemClock } from '#base/clock.ts';

/**
 * The clock of one of several hosts. It advances with real time. A test can change the time of day or let more time
 * pass.
 */
export interface SkewedClock extends Clock {
  /** Changes the time of day, but lets no time pass. */
  jump(ms: number): void;
  /** Lets that much more time pass for this host. Does not wake sleepers. */
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
