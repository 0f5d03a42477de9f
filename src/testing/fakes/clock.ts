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
    sleep: (ms, signal) => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const timer = after(ms, resolve);
      const stop = (): void => reject(signal.reason);
      if (signal.aborted) stop();
      else signal.addEventListener('abort', stop, { once: true });
      return promise.finally(() => {
        timer[Symbol.dispose]();
        signal.removeEventListener('abort', stop);
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
