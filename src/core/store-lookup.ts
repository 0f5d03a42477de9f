import type { Clock } from '#base/clock.ts';
import { endsWithin } from '#base/wait.ts';
import type { StoreConfig, StoreName } from './model.ts';
import type { Records, Store, StoreKind } from './ports.ts';
import type { StoreEntries, StoreEntry } from './store-entries.ts';
import { storeUnavailable, unknownStore } from './store-errors.ts';
import { schemeOf } from './store-scheme.ts';
import type { UsableStoreView } from './store-view.ts';

const openingWaitMs = 5_000;

/** Finds configured stores by name and runs work with them while they stay open. */
export interface StoreLookup {
  list(): readonly UsableStoreView[];
  entryOf(name: string): StoreEntry;
  view(entry: StoreEntry): UsableStoreView;
  defaultName(): StoreName | undefined;
  /** The default store of the configuration. The one that was set through the API takes precedence. */
  setPreferred(name: string | undefined): void;
  /**
   * Runs `work` with the store, which stays open until it ends. Throws 'not-found', or 'unavailable' with the reason why
   * the store is not open.
   */
  use<T>(name: string, work: (store: Store, config: StoreConfig) => Promise<T>): Promise<T>;
  /** Like `use` for background work, which must end when `closing` is aborted because the store is about to close. */
  useInBackground<T>(name: string, work: (store: Store, closing: AbortSignal) => Promise<T>): Promise<T>;
}

export interface StoreLookupParts {
  readonly records: Pick<Records, 'settings'>;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly clock: Clock;
}

export function createStoreLookup(
  { records, clock, kinds }: StoreLookupParts,
  { all }: Pick<StoreEntries, 'all'>,
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

  const use: StoreLookup['use'] = async (name, work) => {
    const entry = entryOf(name);
    // The store may still be opening just after the start. Wait a bounded time, since its disk may hang.
    if (entry.opening !== undefined) await endsWithin(entry.opening, openingWaitMs, clock);
    const { store } = entry;
    if (store === undefined) throw storeUnavailable(entry.config, entry.problem);
    entry.users++;
    try {
      return await work(store, entry.config);
    } finally {
      if (--entry.users === 0) entry.idle?.resolve();
    }
  };

  return {
    list: () => [...all.values()].map(view),
    entryOf,
    view,
    defaultName,
    setPreferred: (name) => {
      preferred = name;
    },
    use,
    useInBackground: async (name, work) => {
      const entry = entryOf(name);
      entry.backgroundUsers++;
      try {
        return await use(name, (store) => work(store, entry.closing.signal));
      } finally {
        entry.backgroundUsers--;
      }
    },
  };
}
