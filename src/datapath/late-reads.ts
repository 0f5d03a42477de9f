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
const wait = { firstMs: 100, mostMs: 5_000 } as const;

const overShare = 3;

/** `read`: resumes reading with that share of lines. */
export function createLateReads(clock: Clock, read: (share: number) => void): LateReads {
  let ms: number = wait.firstMs;
  let next: Disposable | undefined;

  function fire(): void {
    next = undefined;
    ms = Math.min(ms * 2, wait.mostMs);
    read(overShare);
  }

  return {
    schedule: () => {
      next ??= clock.after(ms, fire);
    },
    reset: () => {
      ms = wait.firstMs;
    },
    [Symbol.dispose]: () => next?.[Symbol.dispose](),
  };
}
