import { availableParallelism } from 'node:os';

/**
 * How long to poll before going to sleep. Waking a process takes about as long as a small request in all, but polling occupies a
 * processor. So it polls only while most waits are short, and not when other processes need the processor.
 */
export interface Spin {
  /** The time to poll from now on, in milliseconds. */
  readonly pollMs: number;
  /** Reports how long the last wait took. */
  recordWait(ms: number): void;
  /** Reports the time between two polls. It is long if another process had the processor. */
  recordPoll(ms: number): void;
}

/** A nearby server answers within this time. For a more distant one, sleeping is better. */
const maxPollMs = 0.15;
/** A longer time between two polls means that another process had the processor: neither a poll nor an interrupt takes this long. */
const minPreemptedMs = 0.5;
/** The number of waits without polling after another process needed the processor. */
const waitsAfterPreemption = 64;
/** The weight of the last wait in the moving average. */
const weight = 1 / 32;

export function createSpin(processors = availableParallelism()): Spin {
  /** The moving average of the share of short waits. */
  let shortWaitRatio = 0;
  let waitsUntilPolling = 0;
  return {
    get pollMs() {
      return shortWaitRatio > 0.5 && waitsUntilPolling === 0 && processors > 1 ? maxPollMs : 0;
    },
    recordWait: (ms) => {
      shortWaitRatio += ((ms <= maxPollMs ? 1 : 0) - shortWaitRatio) * weight;
      if (waitsUntilPolling > 0) waitsUntilPolling--;
    },
    recordPoll: (ms) => {
      if (ms > minPreemptedMs) waitsUntilPolling = waitsAfterPreemption;
    },
  };
}
