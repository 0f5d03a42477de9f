import type { Clock } from '#base/clock.ts';

/** Answers that count for a while. */
export interface AnswerCache<T> {
  /** Who asks while the answer is on its way waits for the same. A failure is nobody else's. */
  of(key: string, ask: () => Promise<T>): Promise<T>;
}

export interface AnswerCacheOptions {
  readonly clock: Clock;
  /** From when it was asked on. */
  readonly ms: number;
  readonly maxEntries: number;
}

export function createAnswerCache<T>({ clock, ms, maxEntries: most }: AnswerCacheOptions): AnswerCache<T> {
  const known = new Map<string, { readonly answer: Promise<T>; readonly until: number }>();

  function makeRoom(): void {
    // The first in is the first out: all are kept for the same time.
    for (const oldest of known.keys()) {
      if (known.size < most) break;
      known.delete(oldest);
    }
  }

  return {
    of: async (key, ask) => {
      const found = known.get(key);
      if (found !== undefined && clock.elapsed() < found.until) {
        try {
          return await found.answer;
        } catch {
          // The one who asked may have gone away, which is no answer for us.
        }
      }
      known.delete(key);
      makeRoom();
      const entry = { answer: ask(), until: clock.elapsed() + ms };
      known.set(key, entry);
      try {
        return await entry.answer;
      } catch (thrown) {
        if (known.get(key) === entry) known.delete(key);
        throw thrown;
      }
    },
  };
}
