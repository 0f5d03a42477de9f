import { expect } from 'vitest';
import { createFakeClock, type FakeClock } from './fakes/clock.ts';

/** Time that stands still, and who waits for it to go on. */
export interface WaitedClock extends FakeClock {
  /** What those who sleep now asked for, in their order. */
  readonly sleeping: readonly number[];
  /** What everybody asked for so far, in their order. */
  readonly slept: readonly number[];
  /** Waits until so many sleep, then lets that much time pass. */
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
      // Those who were woken are awake by then.
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}
