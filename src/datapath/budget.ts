/** So many bytes and no more. */
export interface Budget {
  /** Whether there is as much left. The first may take more than there ever is. */
  has(bytes: number): boolean;
  take(bytes: number): void;
  give(bytes: number): void;
  /** Resolves when some was given back. */
  given(signal: AbortSignal): Promise<void>;
  readonly isHalfUsed: boolean;
  readonly used: number;
}

export function createBudget(most: number): Budget {
  let used = 0;
  let waiting: PromiseWithResolvers<void> | undefined;
  return {
    has: (bytes) => used === 0 || used + bytes <= most,
    take: (bytes) => {
      used += bytes;
    },
    give: (bytes) => {
      used -= bytes;
      waiting?.resolve();
      waiting = undefined;
    },
    given: async (signal) => {
      signal.throwIfAborted();
      waiting ??= Promise.withResolvers();
      const { promise: stopped, reject } = Promise.withResolvers<never>();
      const stop = (): void => reject(signal.reason);
      signal.addEventListener('abort', stop, { once: true });
      try {
        await Promise.race([waiting.promise, stopped]);
      } finally {
        signal.removeEventListener('abort', stop);
      }
    },
    get isHalfUsed() {
      return used * 2 >= most;
    },
    get used() {
      return used;
    },
  };
}
