import { head, line, lineWord as word } from './layout.ts';
import type { JournalMemory } from './memory.ts';

/** Which requests data paths may have ended for. */
export interface CrashSuspects {
  /** This process was told to end: it will not have been for what it was doing. */
  stopping(): void;
  /** If this process ends now, it is for the request at this place. Undefined: it may be for any. */
  suspect(place: number | undefined): void;
}

/** Data paths end for other reasons, too. Who was there more often is tried by itself, and blamed for what happens then. */
export const maxByChance = 3;

export interface PredecessorSuspects extends CrashSuspects {
  /** Counts the predecessor's end for the request at this place, if it may have been for that; gives how many those are. */
  count(place: number): number;
  /** When all of them are counted. */
  counted(): void;
}

export function createCrashSuspects({ words }: JournalMemory): PredecessorSuspects {
  const store = (field: number, value: number): void => void Atomics.store(words, field / 4, value);

  function isToBlame(place: number, outlived: number): boolean {
    if (words[head.stopping / 4] !== 0) return false;
    const suspect = words[head.suspect / 4] ?? 0;
    return suspect === 0 ? outlived < maxByChance : suspect === place + 1;
  }

  return {
    stopping: () => store(head.stopping, 1),
    suspect: (place) => store(head.suspect, place === undefined ? 0 : place + 1),
    count: (place) => {
      const before = words[word(place, line.outlived)] ?? 0;
      const outlived = isToBlame(place, before) ? before + 1 : before;
      words[word(place, line.outlived)] = outlived;
      return outlived;
    },
    counted: () => {
      store(head.stopping, 0);
      store(head.suspect, 0);
    },
  };
}
