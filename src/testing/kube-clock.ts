import { expect } from 'vitest';
import { createFakeClock, type FakeClock } from './fakes/clock.ts';

/** A fake clock that records its sleepers. */
export interface WaitedClock extends FakeClock {
  /** The durations of the current sleeps, in order. */
  readonly sleeping: readonly number[];
  /** The durations of all sleeps so far, in order. */
  readonly slept: readonly number[];
  /** Waits for that many sleepers, then advances by that time. */
  passWhenAsleep(ms: number, sleepers?: number): Promise<void>;
}

export function createWaitedClock(): WaitedClock {
  const clock = createFakeClock();
  const asleep = new Set<{ readonly ms: number }>();
  const slept: number[] = [];
  return {
    ...clock,
    slept,
    get sleeping() {
      return [...asleep].map(({ ms }) => ms);
    },
    sleep: async (ms, signal) => {
      const one = { ms };
      asleep.add(one);
      slept.push(ms);
      try {
        await clock.sleep(ms, signal);
      } finally {
        asleep.delete(one);
      }
    },
    passWhenAsleep: async (ms, sleepers = 1) => {
      await expect.poll(() => asleep.size, { interval: 5 }).toBeGreaterThanOrEqual(sleepers);
      clock.advance(ms);
      // The woken sleepers have run by then.
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}
