import { cells, maxTransfer } from './journal/layout.ts';
import { unlessAborted } from './unless-aborted.ts';

/** So much and no more. */
export interface Budget {
  /** Whether there is as much left. The first may take more than there ever is. */
  has(amount: number): boolean;
  take(amount: number): void;
  give(amount: number): void;
  /** Resolves when some was given back. */
  given(signal: AbortSignal): Promise<void>;
  readonly isHalfUsed: boolean;
  readonly used: number;
}

export function createBudget(most: number): Budget {
  let used = 0;
  let waiting: PromiseWithResolvers<void> | undefined;
  return {
    has: (amount) => used === 0 || used + amount <= most,
    take: (amount) => {
      used += amount;
    },
    give: (amount) => {
      used -= amount;
      waiting?.resolve();
      waiting = undefined;
    },
    given: async (signal) => {
      waiting ??= Promise.withResolvers();
      await unlessAborted(waiting.promise, signal);
    },
    get isHalfUsed() {
      return used * 2 >= most;
    },
    get used() {
      return used;
    },
  };
}

/** What all mounts of a process, and one of them, may have written behind. */
export const mostBehind = 64 * 1024 * 1024;
export const mostBehindOfMount = mostBehind / 4;

/** Of a request beside its data. */
const overhead = 128;

/**
 * What data of so many bytes cost: not their own size, but what they take away from others in the journal. With it 2048 lines,
 * 256 large cells or 64 slots can be behind at once, and there are more of each.
 */
export function costOf(bytes: number): number {
  const [small, large] = cells;
  if (bytes + overhead <= small.size) return 32 * 1024;
  return bytes + overhead <= large.size ? 256 * 1024 : maxTransfer;
}
