import { availableParallelism } from 'node:os';

/**
 * How long to poll before going to sleep. Waking a process takes about as long as a small request in all, but polling occupies a
 * processor. So it polls only while most waits are short, and not when other processes need the processor.
 */
export interface Spin {
  /** The time to poll from now on, in milliseconds. */
  readonly ms: number;
  /** Reports how long the last wait took. */
  waited(ms: number): void;
  /** Reports the time between two polls. It is long if another process had the processor. */
  looked(ms: number): void;
}

/** A server nearby answers within this; for one that is farther away it is better to sleep. */
const longest = 0.15;
/** Neither a poll nor an interrupt takes this long by itself. */
const interrupted = 0.5;
/** The number of waits without polling after another process needed the processor. */
const rest = 64;
/** The weight of the last wait in the moving average. */
const weight = 1 / 32;

export function createSpin(processors = availableParallelism()): Spin {
  /** The moving average of the share of short waits. */
  let share = 0;
  let resting = 0;
  return {
    get ms() {
      return share > 0.5 && resting === 0 && processors > 1 ? longest : 0;
    },
    waited: (ms) => {
      share += ((ms <= longest ? 1 : 0) - share) * weight;
      if (resting > 0) resting--;
    },
    looked: (ms) => {
      if (ms > interrupted) resting = rest;
    },
  };
}
