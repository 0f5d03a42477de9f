import { onAbort } from './aborted.ts';

/** Limits concurrency; callers beyond the limit wait in a queue. */
export interface Limiter {
  /** An abort ends only the wait in the queue, and throws the signal's reason. Afterwards `work` must check the signal itself. */
  run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T>;
}

export function createLimiter(limit: number): Limiter {
  const waiting = new Set<() => void>();
  let running = 0;

  async function awaitTurn(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leaveQueue = (): void => {
      waiting.delete(resolve);
      reject(signal?.reason);
    };
    waiting.add(resolve);
    using _ = signal === undefined ? undefined : onAbort(signal, leaveQueue);
    await promise;
  }

  return {
    run: async (work, signal) => {
      signal?.throwIfAborted();
      if (running >= limit) await awaitTurn(signal);
      else running++;
      try {
        return await work();
      } finally {
        // Pass the slot to the next in the queue, or free it.
        const [next] = waiting;
        if (next === undefined) running--;
        else {
          waiting.delete(next);
          next();
        }
      }
    },
  };
}
