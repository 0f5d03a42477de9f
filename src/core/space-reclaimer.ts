import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from './errors.ts';
import type { Stores } from './stores.ts';

/** Frees the space of deleted volumes in the background, so that deleting a large volume returns at once. */
export interface SpaceReclaimer {
  schedule(store: string): void;
  /** Resumes work on stores that began to close but stayed open. */
  resume(): void;
  stop(): Promise<void>;
}

// Long enough to handle a burst of deletions in one pass.
const batchDelayMs = 250;
const stopDeadlineMs = 5_000;

export function createSpaceReclaimer(parts: {
  readonly stores: Stores;
  readonly clock: Clock;
  readonly log: Log;
}): SpaceReclaimer {
  const { stores, clock, log } = parts;
  const stopping = new AbortController();
  const scheduledStores = new Set<string>();
  const interruptedStores = new Set<string>();
  /** One worker per store, so that a hung disk does not delay other stores. */
  const running = new Map<string, Promise<void>>();

  async function reclaimOnce(name: string): Promise<void> {
    let stopSignal = stopping.signal;
    try {
      await stores.useInBackground(name, async (store, closing) => {
        stopSignal = AbortSignal.any([stopping.signal, closing]);
        await store.housekeeping?.reclaim?.({ signal: stopSignal, log });
      });
    } catch (thrown) {
      // The next deletion and the next start retry.
      if (stopSignal.aborted) interruptedStores.add(name);
      else log.warn('space could not be freed', { store: name, why: stowageError(thrown).message });
    }
  }

  async function reclaimWhileScheduled(name: string): Promise<void> {
    while (scheduledStores.has(name) && !stopping.signal.aborted) {
      await clock.sleep(batchDelayMs, stopping.signal).catch(() => undefined);
      scheduledStores.delete(name);
      await reclaimOnce(name);
    }
    running.delete(name);
  }

  const schedule = (store: string): void => {
    if (stopping.signal.aborted) return;
    scheduledStores.add(store);
    if (!running.has(store)) running.set(store, reclaimWhileScheduled(store));
  };

  return {
    schedule,
    resume: () => {
      const isOpen = (name: string): boolean =>
        stores.list().some(({ config, store }) => config.name === name && store !== undefined);
      for (const name of interruptedStores) if (isOpen(name)) schedule(name);
      interruptedStores.clear();
    },
    stop: async () => {
      stopping.abort();
      await endsWithin(Promise.all(running.values()), stopDeadlineMs, clock);
    },
  };
}
