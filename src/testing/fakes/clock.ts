import { type Clock, DeadlineExceeded } from '#base/clock.ts';

/** Time that stands still until a test moves it. */
export interface FakeClock extends Clock {
  /** Wakes every sleeper and ends every deadline up to then, in their order. */
  advance(ms: number): void;
}

interface Timer {
  readonly at: number;
  fire(): void;
}

export function createFakeClock(start = Date.UTC(2026, 0, 1)): FakeClock {
  let now = start;
  const timers = new Set<Timer>();

  return {
    now: () => now,
    sleep: (ms, signal) => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const timer: Timer = { at: now + ms, fire: resolve };
      timers.add(timer);
      const stop = (): void => reject(signal.reason);
      if (signal.aborted) stop();
      else signal.addEventListener('abort', stop, { once: true });
      return promise.finally(() => {
        timers.delete(timer);
        signal.removeEventListener('abort', stop);
      });
    },
    deadline: (ms, parent) => {
      const limit = new AbortController();
      const timer: Timer = { at: now + ms, fire: () => limit.abort(new DeadlineExceeded(ms)) };
      timers.add(timer);
      return {
        signal: AbortSignal.any([parent, limit.signal]),
        [Symbol.dispose]: () => timers.delete(timer),
      };
    },
    advance: (ms) => {
      now += ms;
      const due = [...timers].filter((timer) => timer.at <= now).sort((a, b) => a.at - b.at);
      for (const timer of due) {
        timers.delete(timer);
        timer.fire();
      }
    },
  };
}
