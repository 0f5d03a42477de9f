import type { Clock } from '#base/clock.ts';

/** Limits how often data paths are started. */
export interface RestartBackoff {
  /** Milliseconds until the next start. */
  delayMs(): number;
  started(): void;
  /** A data path died before it was useful. */
  failed(): void;
  succeeded(): void;
}

/** A burst, then one start per pause: starting a process costs a quarter of a second of CPU time. */
const burst = 10;
const pauseMs = 1_000;
const maxMs = 10_000;

export function createRestartBackoff(clock: Clock): RestartBackoff {
  const starts: number[] = [];
  let failures = 0;
  let failedAt = 0;

  const failureDelay = (): number =>
    failures === 0 ? 0 : failedAt + Math.min(maxMs, 100 * 2 ** failures) - clock.elapsed();
  const burstDelay = (): number => {
    const oldest = starts.length < burst ? undefined : starts[0];
    return oldest === undefined ? 0 : oldest + burst * pauseMs - clock.elapsed();
  };

  return {
    delayMs: () => Math.max(0, failureDelay(), burstDelay()),
    started: () => {
      starts.push(clock.elapsed());
      if (starts.length > burst) starts.shift();
    },
    failed: () => {
      failures = Math.min(failures + 1, 16);
      failedAt = clock.elapsed();
    },
    succeeded: () => {
      failures = 0;
    },
  };
}
