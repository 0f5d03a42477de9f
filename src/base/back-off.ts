export interface BackOff {
  /** How long to wait: twice as long each time, up to a bound, and never the same for everybody. */
  next(): number;
  reset(): void;
}

export interface BackOffOptions {
  readonly firstMs: number;
  readonly mostMs: number;
  /** From 0 to 1. */
  readonly random: () => number;
}

/** Twice as long each time; between half of it and the whole, so that those who failed together do not come back together. */
export function waitAfter(failures: number, { firstMs, mostMs, random }: BackOffOptions): number {
  const whole = Math.min(mostMs, firstMs * 2 ** Math.min(failures - 1, 30));
  return whole * (0.5 + random() / 2);
}

export function createBackOff(options: BackOffOptions): BackOff {
  let failures = 0;
  return {
    next: () => {
      failures++;
      return waitAfter(failures, options);
    },
    reset: () => {
      failures = 0;
    },
  };
}
