import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from './errors.ts';
import type { Stores } from './stores.ts';

/** Frees the space of deleted volumes in the background, so that deleting a large volume returns at once. */
export interface SpaceReclaimer {
  soon(store: string): void;
  /** Resumes work that stopped because its store was about to close, and did not close. */
  resume(): void;
  stop(): Promise<void>;
}

// Long enough to handle a burst of deletions in one pass.
const pauseMs = 250;
const stopDeadlineMs = 5_000;

export function createSpaceReclaimer(parts: {
  readonly stores: Stores;
  readonly clock: Clock;
  readonly log: Log;
}): SpaceReclaimer {
  const { stores, clock, log } = parts;
  const stopping = new AbortController();
  const wanted = new Set<string>();
  const stopped = new Set<string>();
  /** One worker per store, so that a hung disk does not delay other stores. */
  const running = new Map<string, Promise<void>>();

  async function pass(name: string): Promise<void> {
    let ending = stopping.signal;
    try {
      await stores.useInBackground(name, async (store, closing) => {
        ending = AbortSignal.any([stopping.signal, closing]);
        await store.housekeeping?.reclaim?.({ signal: ending, log });
      });
    } catch (thrown) {
      // The next deletion and the next start retry.
      if (ending.aborted) stopped.add(name);
      else log.warn('space could not be freed', { store: name, why: stowageError(thrown).message });
    }
  }

  async function work(name: string): Promise<void> {
    while (wanted.has(name) && !stopping.signal.aborted) {
      await clock.sleep(pauseMs, stopping.signal).catch(() => undefined);
      wanted.delete(name);
      await pass(name);
    }
    running.delete(name);
  }

  const soon = (store: string): void => {
    if (stopping.signal.aborted) return;
    wanted.add(store);
    if (!running.has(store)) running.set(store, work(store));
  };

  return {
    soon,
    resume: () => {
      const isOpen = (name: string): boolean =>
        stores.list().some(({ config, store }) => config.name === name && store !== undefined);
      for (const name of stopped) if (isOpen(name)) soon(name);
      stopped.clear();
    },
    stop: async () => {
      stopping.abort();
      await endsWithin(Promise.all(running.values()), stopDeadlineMs, clock);
    },
  };
}
