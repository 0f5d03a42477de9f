/** At most so many at once; the others wait in line. */
export interface Limiter {
  /** The signal ends the wait in line, by throwing its reason; the work looks at it itself. */
  run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T>;
}

export function createLimiter(most: number): Limiter {
  const waiting = new Set<() => void>();
  let running = 0;

  async function turn(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leave = (): void => {
      waiting.delete(resolve);
      reject(signal?.reason);
    };
    waiting.add(resolve);
    signal?.addEventListener('abort', leave, { once: true });
    try {
      await promise;
    } finally {
      signal?.removeEventListener('abort', leave);
    }
  }

  return {
    run: async (work, signal) => {
      signal?.throwIfAborted();
      if (running >= most) await turn(signal);
      else running++;
      try {
        return await work();
      } finally {
        // The place goes to the next in line, or is free.
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
