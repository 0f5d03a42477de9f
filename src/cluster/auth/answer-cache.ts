import type { Clock } from '#base/clock.ts';

/** Caches answers for a limited time. */
export interface AnswerCache<T> {
  /** Concurrent callers share one request. If it fails, only the first caller gets the error; the others repeat the request. */
  get(key: string, ask: () => Promise<T>): Promise<T>;
}

export interface AnswerCacheOptions {
  readonly clock: Clock;
  /** How long an answer is valid, from the start of the request. */
  readonly ttlMs: number;
  readonly maxEntries: number;
}

export function createAnswerCache<T>({ clock, ttlMs, maxEntries }: AnswerCacheOptions): AnswerCache<T> {
  const known = new Map<string, { readonly answer: Promise<T>; readonly until: number }>();

  function makeRoom(): void {
    // Evict the oldest: all entries have the same lifetime.
    for (const oldest of known.keys()) {
      if (known.size < maxEntries) break;
      known.delete(oldest);
    }
  }

  return {
    get: async (key, ask) => {
      const found = known.get(key);
      if (found !== undefined && clock.elapsed() < found.until) {
        try {
          return await found.answer;
        } catch {
          // The first caller may have aborted, which says nothing about the answer.
        }
      }
      known.delete(key);
      makeRoom();
      const entry = { answer: ask(), until: clock.elapsed() + ttlMs };
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
