import { onAbort } from '#base/aborted.ts';

/**
 * Limits the calls that a store has in flight. Long calls have slots of their own, so that scans that take minutes don't delay short
 * calls. A call with a long slot may wait for a volume's name and for a short slot, never the other way round: that prevents deadlocks.
 */
export interface CallSlots {
  readonly short: Slots;
  readonly long: Slots;
}

export interface Slots {
  /** First come, first served. A caller whose signal aborts leaves the queue. */
  acquire(signal: AbortSignal): Promise<Disposable>;
  /**
   * For a caller that has a slot: releases it during `work`, in which many callers wait for one shared call. The caller then gets a
   * slot before those in the queue.
   */
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
    using _ = signal === undefined ? undefined : onAbort(signal, stop);
    await promise;
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
