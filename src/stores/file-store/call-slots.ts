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
  const returningCallers = new Set<() => void>();
  const newCallers = new Set<() => void>();

  function releaseSlot(): void {
    const [next] = returningCallers.size > 0 ? returningCallers : newCallers;
    if (next === undefined) free++;
    else next();
  }
  const slot: Disposable = { [Symbol.dispose]: releaseSlot };

  async function acquireSlot(queue: Set<() => void>, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (free > 0) {
      free--;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const grantSlot = (): void => {
      queue.delete(grantSlot);
      resolve();
    };
    const leaveQueue = (): void => {
      queue.delete(grantSlot);
      reject(signal?.reason);
    };
    queue.add(grantSlot);
    using _ = signal === undefined ? undefined : onAbort(signal, leaveQueue);
    await promise;
  }

  return {
    acquire: async (signal) => {
      await acquireSlot(newCallers, signal);
      return slot;
    },
    releaseDuring: async (work) => {
      releaseSlot();
      try {
        await work();
      } finally {
        await acquireSlot(returningCallers);
      }
    },
  };
}
