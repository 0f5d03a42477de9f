import { unlessAborted } from '#base/aborted.ts';
import { cells, maxTransfer } from './journal/layout.ts';

/** A bounded resource. */
export interface Budget {
  /** Whether this much is left. The first user may take more than the total. */
  has(amount: number): boolean;
  take(amount: number): void;
  give(amount: number): void;
  /** Resolves when some is given back. */
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

/** Limits of unwritten data: of all mounts of the process, and of one mount. */
export const maxUnwritten = 64 * 1024 * 1024;
export const maxUnwrittenOfMount = maxUnwritten / 4;

/** Size of a WRITE request without its data. */
const overhead = 128;

/**
 * The cost of a write: not its size, but the journal space that it takes from others. It allows 2048 lines, 256 large
 * cells or 64 slots at once; the journal has more of each.
 */
export function costOf(bytes: number): number {
  const [small, large] = cells;
  if (bytes + overhead <= small.size) return 32 * 1024;
  return bytes + overhead <= large.size ? 256 * 1024 : maxTransfer;
}
