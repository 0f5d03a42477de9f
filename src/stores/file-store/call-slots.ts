/**
 * How many calls a store has under way. Long calls have places of their own: scans that take minutes must not keep the
 * short ones waiting. Whoever has a long place may wait for a volume's name and for a short place, never the other way
 * round: so nobody waits in a circle.
 */
export interface CallSlots {
  readonly short: Slots;
  readonly long: Slots;
}

export interface Slots {
  /** First come, first served. Who waits no longer than its signal leaves the line. */
  acquire(signal: AbortSignal): Promise<Disposable>;
  /** For who has a place: others have it during `work`, in which many wait for one call. Comes back before all who wait. */
  releaseDuring(work: () => Promise<void>): Promise<void>;
}

export function createSlots(count: number): Slots {
  let free = count;
  const returning = new Set<() => void>();
  const line = new Set<() => void>();

  function leave(): void {
    const [next] = returning.size > 0 ? returning : line;
    if (next === undefined) free++;
    else next();
  }
  const slot: Disposable = { [Symbol.dispose]: leave };

  async function enter(queue: Set<() => void>, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (free > 0) {
      free--;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const turn = (): void => {
      queue.delete(turn);
      resolve();
    };
    const stop = (): void => {
      queue.delete(turn);
      reject(signal?.reason);
    };
    queue.add(turn);
    signal?.addEventListener('abort', stop, { once: true });
    await promise.finally(() => signal?.removeEventListener('abort', stop));
  }

  return {
    acquire: async (signal) => {
      await enter(line, signal);
      return slot;
    },
    releaseDuring: async (work) => {
      leave();
      try {
        await work();
      } finally {
        await enter(returning);
      }
    },
  };
}
