import type { Clock } from '#base/clock.ts';

/** Limits how often data paths are started. */
export interface RestartBackoff {
  /** Milliseconds until the next start. */
  delayMs(): number;
  recordStart(): void;
  /** A data path died before it was useful. */
  recordFailure(): void;
  recordSuccess(): void;
}

/** A burst, then one start per pause: starting a process costs a quarter of a second of CPU time. */
const maxBurst = 10;
const startIntervalMs = 1_000;
const maxDelayMs = 10_000;

export function createRestartBackoff(clock: Clock): RestartBackoff {
  const starts: number[] = [];
  let failures = 0;
  let failedAt = 0;

  const failureDelay = (): number =>
    failures === 0 ? 0 : failedAt + Math.min(maxDelayMs, 100 * 2 ** failures) - clock.elapsed();
  const burstDelay = (): number => {
    const oldest = starts.length < maxBurst ? undefined : starts[0];
    return oldest === undefined ? 0 : oldest + maxBurst * startIntervalMs - clock.elapsed();
  };

  return {
    delayMs: () => Math.max(0, failureDelay(), burstDelay()),
    recordStart: () => {
      starts.push(clock.elapsed());
      if (starts.length > maxBurst) starts.shift();
    },
    recordFailure: () => {
      failures = Math.min(failures + 1, 16);
      failedAt = clock.elapsed();
    },
    recordSuccess: () => {
      failures = 0;
    },
  };
}
