/** At most so many at once; the others wait in line. */
export interface Limiter {
  run<T>(work: () => Promise<T>): Promise<T>;
}

export function createLimiter(most: number): Limiter {
  const waiting: (() => void)[] = [];
  let running = 0;
  return {
    run: async (work) => {
      if (running >= most) await new Promise<void>((resolve) => waiting.push(resolve));
      else running++;
      try {
        return await work();
      } finally {
        // The place goes to the next in line, or is free.
        const next = waiting.shift();
        if (next === undefined) running--;
        else next();
      }
    },
  };
}
