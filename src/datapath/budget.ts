import { unlessAborted } from '#base/aborted.ts';
import { cells, maxTransfer } from './journal/layout.ts';

/** A bounded resource. */
export interface Budget {
  /** Whether this much is left. The first user may take more than the total. */
  hasLeft(amount: number): boolean;
  take(amount: number): void;
  release(amount: number): void;
  /** Resolves at the next release. */
  waitForRelease(signal: AbortSignal): Promise<void>;
  readonly isHalfUsed: boolean;
  readonly used: number;
}

export function createBudget(maxAmount: number): Budget {
  let used = 0;
  let nextRelease: PromiseWithResolvers<void> | undefined;
  return {
    hasLeft: (amount) => used === 0 || used + amount <= maxAmount,
    take: (amount) => {
      used += amount;
    },
    release: (amount) => {
      used -= amount;
      nextRelease?.resolve();
      nextRelease = undefined;
    },
    waitForRelease: async (signal) => {
      nextRelease ??= Promise.withResolvers();
      await unlessAborted(nextRelease.promise, signal);
    },
    get isHalfUsed() {
      return used * 2 >= maxAmount;
    },
    get used() {
      return used;
    },
  };
}

/** Limits of unwritten data: of all mounts of the process, and of one mount. */
export const maxUnwrittenBytes = 64 * 1024 * 1024;
export const maxUnwrittenBytesPerMount = maxUnwrittenBytes / 4;

/** Size of a WRITE request without its data. */
const writeHeaderBytes = 128;

/**
 * The cost of a write: not its size, but the journal space that it takes from others. The budget allows 2048 lines, 256
 * large cells or 64 slots at once; the journal has more of each.
 */
export function costOf(bytes: number): number {
  const [small, large] = cells;
  if (bytes + writeHeaderBytes <= small.size) return 32 * 1024;
  return bytes + writeHeaderBytes <= large.size ? 256 * 1024 : maxTransfer;
}
