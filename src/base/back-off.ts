export interface BackOff {
  /** The next delay: doubles each time up to a limit, with jitter. */
  next(): number;
  reset(): void;
}

export interface BackOffOptions {
  readonly firstMs: number;
  readonly maxMs: number;
  /** From 0 to 1. */
  readonly random: () => number;
}

/** The delay doubles with each failure. Jitter (half to all of it) keeps callers that failed together from retrying together. */
export function backOffDelay(failures: number, { firstMs, maxMs, random }: BackOffOptions): number {
  const fullMs = Math.min(maxMs, firstMs * 2 ** Math.min(failures - 1, 30));
  return fullMs * (0.5 + random() / 2);
}

export function createBackOff(options: BackOffOptions): BackOff {
  let failures = 0;
  return {
    next: () => {
      failures++;
      return backOffDelay(failures, options);
    },
    reset: () => {
      failures = 0;
    },
  };
}
