import { endsWithin } from '#base/wait.ts';
import type { StoreName } from './model.ts';
import type { StoreEntries, StoreEntry } from './store-entries.ts';
import { storeUnavailable, unknownStore } from './store-errors.ts';
import { schemeOf } from './store-scheme.ts';
import type { UsableStoreView } from './store-view.ts';
import type { Stores, StoresParts } from './stores.ts';

const usePatienceMs = 5_000;

/** Read access to the configured stores. */
export interface StoreLookup {
  entryOf(name: string): StoreEntry;
  view(entry: StoreEntry): UsableStoreView;
  defaultName(): StoreName | undefined;
  use: Stores['use'];
  list: Stores['list'];
  prefer(name: string | undefined): void;
}

export function createStoreLookup(
  { records, clock, kinds }: Pick<StoresParts, 'records' | 'clock' | 'kinds'>,
  { all }: StoreEntries,
): StoreLookup {
  let preferred: string | undefined;

  function entryOf(name: string): StoreEntry {
    const entry = all.get(name);
    if (entry === undefined) throw unknownStore(name);
    return entry;
  }

  function defaultName(): StoreName | undefined {
    for (const name of [records.settings.get('defaultStore'), preferred]) {
      const entry = name === undefined ? undefined : all.get(name);
      if (entry !== undefined) return entry.config.name;
    }
    const [first] = all.values();
    return first?.config.name;
  }

  function view({ config, store, problem, pending }: StoreEntry): UsableStoreView {
    const isDefault = config.name === defaultName();
    // The kind exists: parseStoreConfig rejects unknown kinds.
    const kind = kinds.get(schemeOf(config.uri));
    const { placement = 'node' } = kind ?? {};
    const clientName = kind?.clientName(config) ?? '';
    return { config, store, problem, placement, clientName, default: isDefault, pending: pending?.why };
  }

  return {
    entryOf,
    view,
    defaultName,
    list: () => [...all.values()].map(view),
    use: async (name, work) => {
      const entry = entryOf(name);
      // The store may still be opening just after the start. Wait a bounded time, since its disk may hang.
      if (entry.opening !== undefined) await endsWithin(entry.opening, usePatienceMs, clock);
      const { store } = entry;
      if (store === undefined) throw storeUnavailable(entry.config, entry.problem);
      entry.users++;
      try {
        return await work(store, entry.config);
      } finally {
        if (--entry.users === 0) entry.idle?.resolve();
      }
    },
    prefer: (name) => {
      preferred = name;
    },
  };
}
