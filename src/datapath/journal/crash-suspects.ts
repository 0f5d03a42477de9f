import { head, line, lineWord } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Records which requests may have crashed data paths. */
export interface CrashSuspects {
  /** This process has received a request to stop: no request in flight caused its exit. */
  markStopping(): void;
  /** If this process crashes now, the request at this place is the cause. Undefined: any request may be the cause. */
  setSuspect(place: number | undefined): void;
}

/**
 * Data paths also die for other reasons. A request that was present at more crashes than this is retried alone and is
 * blamed for the next crash.
 */
export const maxCoincidentalCrashes = 3;

export interface PredecessorSuspects extends CrashSuspects {
  /**
   * Counts the predecessor's crash for the request at this place if it may be the cause; returns the request's count.
   */
  count(place: number): number;
  /** Call when all requests are counted. */
  finishCounting(): void;
}

export function createCrashSuspects({ words }: JournalMemory): PredecessorSuspects {
  const store = (field: number, value: number): void => void Atomics.store(words, field / 4, value);

  function isToBlame(place: number, crashCount: number): boolean {
    if (words[head.stopping / 4] !== 0) return false;
    const suspect = words[head.suspect / 4] ?? 0;
    return suspect === 0 ? crashCount < maxCoincidentalCrashes : suspect === place + 1;
  }

  return {
    markStopping: () => store(head.stopping, 1),
    setSuspect: (place) => store(head.suspect, place === undefined ? 0 : place + 1),
    count: (place) => {
      const before = words[lineWord(place, line.crashCount)] ?? 0;
      const crashCount = isToBlame(place, before) ? before + 1 : before;
      words[lineWord(place, line.crashCount)] = crashCount;
      return crashCount;
    },
    finishCounting: () => {
      store(head.stopping, 0);
      store(head.suspect, 0);
    },
  };
}
