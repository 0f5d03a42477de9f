import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from './errors.ts';
import type { Stores } from './stores.ts';

/** Frees the space of deleted volumes behind their deletion, which is answered at once however large they were. */
export interface SpaceReclaimer {
  soon(store: string): void;
  /** Goes on with what was stopped because its store was to be closed, and then was not. */
  resume(): void;
  stop(): Promise<void>;
}

// Long enough that a burst of deletions becomes one pass.
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
  /** Each store by itself: one whose disk hangs does not keep the others waiting. */
  const running = new Map<string, Promise<void>>();

  async function pass(name: string): Promise<void> {
    let ending = stopping.signal;
    try {
      await stores.useInBackground(name, async (store, closing) => {
        ending = AbortSignal.any([stopping.signal, closing]);
        await store.housekeeping?.reclaim?.({ signal: ending, log });
      });
    } catch (thrown) {
      // It is taken up again at the next deletion and at the next start.
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
