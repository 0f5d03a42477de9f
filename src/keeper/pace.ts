import type { Clock } from '#base/clock.ts';

/** How soon another data path may be started. */
export interface Pace {
  /** Milliseconds from now. */
  wait(): number;
  started(): void;
  /** One died before it was of any use. */
  failed(): void;
  succeeded(): void;
}

/** So many at once, then one after each pause: a process that starts costs a quarter of a second of a processor. */
const atOnce = 10;
const pauseMs = 1_000;
const longestMs = 10_000;

export function createPace(clock: Clock): Pace {
  const starts: number[] = [];
  let failures = 0;
  let failedAt = 0;

  const sinceFailure = (): number =>
    failures === 0 ? 0 : failedAt + Math.min(longestMs, 100 * 2 ** failures) - clock.elapsed();
  const sinceStarts = (): number => {
    const oldest = starts.length < atOnce ? undefined : starts[0];
    return oldest === undefined ? 0 : oldest + atOnce * pauseMs - clock.elapsed();
  };

  return {
    wait: () => Math.max(0, sinceFailure(), sinceStarts()),
    started: () => {
      starts.push(clock.elapsed());
      if (starts.length > atOnce) starts.shift();
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
