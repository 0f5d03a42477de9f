import type { Clock } from '#base/clock.ts';

/** How soon another data path may be started. */
export interface RestartBackoff {
  /** Milliseconds from now. */
  delayMs(): number;
  started(): void;
  /** One died before it was of any use. */
  failed(): void;
  succeeded(): void;
}

/** So many at once, then one after each pause: a process that starts costs a quarter of a second of a processor. */
const burst = 10;
const pauseMs = 1_000;
const longestMs = 10_000;

export function createRestartBackoff(clock: Clock): RestartBackoff {
  const starts: number[] = [];
  let failures = 0;
  let failedAt = 0;

  const failureDelay = (): number =>
    failures === 0 ? 0 : failedAt + Math.min(longestMs, 100 * 2 ** failures) - clock.elapsed();
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
