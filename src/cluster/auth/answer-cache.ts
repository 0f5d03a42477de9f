import type { Clock } from '#base/clock.ts';

/** Caches answers for a limited time. */
export interface AnswerCache<T> {
  /** Concurrent callers share one request. If it fails, only the first caller gets the error; the others repeat the request. */
  get(key: string, request: () => Promise<T>): Promise<T>;
}

export interface AnswerCacheOptions {
  readonly clock: Clock;
  /** How long an answer is valid, from the start of the request. */
  readonly ttlMs: number;
  readonly maxEntries: number;
}

export function createAnswerCache<T>({ clock, ttlMs, maxEntries }: AnswerCacheOptions): AnswerCache<T> {
  const entries = new Map<string, { readonly answer: Promise<T>; readonly expiresAt: number }>();

  function makeRoom(): void {
    // Evict the oldest: all entries have the same lifetime.
    for (const oldest of entries.keys()) {
      if (entries.size < maxEntries) break;
      entries.delete(oldest);
    }
  }

  return {
    get: async (key, request) => {
      const found = entries.get(key);
      if (found !== undefined && clock.elapsed() < found.expiresAt) {
        try {
          return await found.answer;
        } catch {
          // The first caller may have aborted its request, so repeat it.
        }
      }
      entries.delete(key);
      makeRoom();
      const entry = { answer: request(), expiresAt: clock.elapsed() + ttlMs };
      entries.set(key, entry);
      try {
        return await entry.answer;
      } catch (thrown) {
        if (entries.get(key) === entry) entries.delete(key);
        throw thrown;
      }
    },
  };
}
