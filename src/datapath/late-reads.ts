import type { Clock } from '#base/clock.ts';

/** Reads of a mount that has its share of lines. */
export interface LateReads extends Disposable {
  /** Schedules the next read, unless one is scheduled. */
  schedule(): void;
  /** The mount has room again. */
  reset(): void;
}

/**
 * A mount that has its share of lines still reads a request now and then, less and less often: the kernel delivers
 * interrupts first, but only to a reader. That may bring it to three quarters of all lines.
 */
const backoff = { firstMs: 100, maxMs: 5_000 } as const;

const extraShare = 3;

/** `read`: resumes reading with that share of lines. */
export function createLateReads(clock: Clock, read: (share: number) => void): LateReads {
  let delayMs: number = backoff.firstMs;
  let next: Disposable | undefined;

  function fire(): void {
    next = undefined;
    delayMs = Math.min(delayMs * 2, backoff.maxMs);
    read(extraShare);
  }

  return {
    schedule: () => {
      next ??= clock.after(delayMs, fire);
    },
    reset: () => {
      delayMs = backoff.firstMs;
    },
    [Symbol.dispose]: () => next?.[Symbol.dispose](),
  };
}
