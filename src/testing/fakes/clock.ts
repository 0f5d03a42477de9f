import { onAbort } from '#base/aborted.ts';
import { type Clock, deadlineBy } from '#base/clock.ts';

/** A clock that a test advances. */
export interface FakeClock extends Clock {
  /** Wakes every sleeper and ends every deadline of that period, in order. */
  advance(ms: number): void;
  /** Changes the time of day, but lets no time pass. */
  jump(ms: number): void;
}

interface Timer {
  readonly at: number;
  fire(): void;
}

export function createFakeClock(start = Date.UTC(2026, 0, 1)): FakeClock {
  let elapsed = 0;
  let offset = start;
  const timers = new Set<Timer>();

  const after: Clock['after'] = (ms, fire) => {
    const timer: Timer = { at: elapsed + ms, fire };
    timers.add(timer);
    return { [Symbol.dispose]: () => timers.delete(timer) };
  };

  return {
    now: () => offset + elapsed,
    elapsed: () => elapsed,
    after,
    // Adds as few turns of the microtask queue as possible: tests with seeds depend on their number.
    sleep: (ms, signal) => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const timer = after(ms, resolve);
      const stop = onAbort(signal, () => reject(signal.reason));
      return promise.finally(() => {
        timer[Symbol.dispose]();
        stop[Symbol.dispose]();
      });
    },
    deadline: (ms, parent) => deadlineBy(after, ms, parent),
    jump: (ms) => {
      offset += ms;
    },
    advance: (ms) => {
      elapsed += ms;
      const due = [...timers].filter((timer) => timer.at <= elapsed).sort((a, b) => a.at - b.at);
      for (const timer of due) {
        timers.delete(timer);
        timer.fire();
      }
    },
  };
}
