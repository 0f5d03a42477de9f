import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { Stores } from './stores.ts';

/** Frees the space of deleted volumes behind their deletion, which is answered at once however large they were. */
export interface Reclaim {
  soon(store: string): void;
  stop(): Promise<void>;
}

// Long enough that a burst of deletions becomes one pass.
const pauseMs = 250;

export function createReclaim(parts: { readonly stores: Stores; readonly clock: Clock; readonly log: Log }): Reclaim {
  const { stores, clock, log } = parts;
  const stopping = new AbortController();
  const wanted = new Set<string>();
  let running: Promise<void> | undefined;

  async function pass(name: string): Promise<void> {
    try {
      await stores.use(name, (store) => store.reclaim({ signal: stopping.signal, log }));
    } catch (thrown) {
      // It is taken up again at the next deletion and at the next start.
      if (!stopping.signal.aborted)
        log.warn('space could not be freed', { store: name, why: stowageError(thrown).message });
    }
  }

  async function work(): Promise<void> {
    while (wanted.size > 0 && !stopping.signal.aborted) {
      await clock.sleep(pauseMs, stopping.signal).catch(() => undefined);
      const names = [...wanted];
      wanted.clear();
      for (const name of names) await pass(name);
    }
    running = undefined;
  }

  return {
    soon: (store) => {
      if (stopping.signal.aborted) return;
      wanted.add(store);
      running ??= work();
    },
    stop: async () => {
      stopping.abort();
      await running;
    },
  };
}
