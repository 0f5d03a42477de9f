import { type Clock, deadlineBy, systemClock } from '#base/clock.ts';

/** The system clock. A test can skip waits. */
export interface SkippingClock extends Clock {
  /** Advances by that time, and fires every timer that is due. */
  skip(ms: number): void;
}

export function createSkippingClock(): SkippingClock {
  const real = systemClock();
  let skipped = 0;
  const waiting = new Set<{ readonly at: number; readonly fire: () => void }>();
  const elapsed = (): number => real.elapsed() + skipped;

  const after: Clock['after'] = (ms, fire) => {
    const dispose = (): void => {
      timer[Symbol.dispose]();
      waiting.delete(one);
    };
    const once = (): void => {
      dispose();
      fire();
    };
    const one = { at: elapsed() + ms, fire: once };
    const timer = real.after(ms, once);
    waiting.add(one);
    return { [Symbol.dispose]: dispose };
  };

  return {
    ...real,
    elapsed,
    now: () => real.now() + skipped,
    after,
    deadline: (ms, parent) => deadlineBy(after, ms, parent),
    skip: (ms) => {
      skipped += ms;
      const due = [...waiting].filter(({ at }) => at <= elapsed()).sort((a, b) => a.at - b.at);
      // A timer's callback may dispose of another timer.
      for (const one of due) if (waiting.has(one)) one.fire();
    },
  };
}
