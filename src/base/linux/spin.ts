import { availableParallelism } from 'node:os';

/**
 * How long to look again and again for what comes next, before going to sleep. To be woken takes a process about as long as a
 * small request takes in all; but looking keeps a processor busy. So it is done only while it is mostly worth it, and not
 * where somebody else wants the processor.
 */
export interface Spin {
  /** For so long from now on, in milliseconds. */
  readonly ms: number;
  /** What was waited for came after so long. */
  waited(ms: number): void;
  /** Between two looks so much time went by: more than the look took, when somebody else had the processor. */
  looked(ms: number): void;
}

/** A server that is near answers within this; for one that is farther away it is better to sleep. */
const longest = 0.15;
/** No look takes so long by itself, and no interrupt of the system. */
const interrupted = 0.5;
/** So many waits without a look after somebody else wanted the processor. */
const rest = 64;
/** How much the last wait counts among those before. */
const weight = 1 / 32;

export function createSpin(processors = availableParallelism()): Spin {
  /** How many of the waits were short. */
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
