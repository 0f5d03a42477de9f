import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { StoreCheck, StoreConfig, StoreName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { createEntries, type Entries, type Entry, type EntryParts } from './store-entries.ts';
import { cannotAdd, notOurs, removed, stillMounted, taken, unavailable, unknownStore } from './store-errors.ts';
import { parseStoreConfig } from './store-uri.ts';

export interface StoreView {
  readonly config: StoreConfig;
  readonly store: Store | undefined;
  readonly problem: StowageError | undefined;
  readonly default: boolean;
}

export interface Stores {
  list(): readonly StoreView[];
  view(name: string): StoreView;
  /** For the length of `work` the store stays open. Throws 'not-found', or 'unavailable' with the reason it cannot be opened. */
  use<T>(name: string, work: (store: Store, config: StoreConfig) => Promise<T>): Promise<T>;
  readonly defaultName: StoreName | undefined;
  setDefault(name: string): StoreView;
  add(name: string, uri: string, scope: Scope): Promise<StoreView>;
  remove(name: string, scope: Scope): Promise<void>;
  check(name: string, scope: Scope): Promise<StoreCheck>;
  /**
   * What the file (or nothing) says now. Stores that are open and unchanged are not touched; one that fails to open
   * stays listed with its problem.
   */
  configure(configs: readonly StoreConfig[], preferred: string | undefined, scope: Scope): Promise<void>;
  /** Tries again what could not be opened. */
  retry(scope: Scope): Promise<void>;
  close(): Promise<void>;
}

export interface StoresParts extends EntryParts {
  readonly records: Records;
  readonly events: Events;
  /** Volumes of that store that are mounted here: such a store is not closed. */
  readonly mountedOn: (store: StoreName) => readonly string[];
}

export function createStores(parts: StoresParts): Stores {
  const entries = createEntries(parts);
  const reading = createReading(parts, entries);
  const changing = createKeyedLock();
  /** One change at a time: two of them could otherwise both open the same folder. */
  const exclusively: Exclusively = async (scope, work) => {
    using _ = await changing.hold(['configuration'], scope.signal);
    return await work();
  };
  return {
    list: reading.list,
    view: (name) => reading.view(reading.known(name)),
    use: reading.use,
    get defaultName() {
      return reading.defaultName();
    },
    ...createChanges(parts, entries, reading, exclusively),
    configure: createConfigure(parts, entries, reading, exclusively),
    retry: (scope) =>
      exclusively(scope, async () => {
        for (const entry of entries.all.values()) await entries.open(entry, scope);
      }),
    check: async (name, scope) => {
      const entry = reading.known(name);
      if (entry.store === undefined) await exclusively(scope, () => entries.open(entry, scope));
      if (entry.store !== undefined) return await reading.use(name, (store) => store.check(scope));
      const { message, action } = unavailable(entry.config, entry.problem);
      const steps = [{ step: 'open', ok: false, detail: message, action }];
      return { ok: false, steps, totalBytes: undefined, freeBytes: undefined };
    },
    close: async () => {
      await Promise.all([...entries.all.values()].map((entry) => entry.store?.close()));
      entries.all.clear();
    },
  };
}

type Exclusively = <T>(scope: Scope, work: () => Promise<T>) => Promise<T>;

interface Reading {
  known(name: string): Entry;
  view(entry: Entry): StoreView;
  defaultName(): StoreName | undefined;
  use: Stores['use'];
  list: Stores['list'];
  prefer(name: string | undefined): void;
}

function createReading({ records }: StoresParts, { all }: Entries): Reading {
  let preferred: string | undefined;

  function known(name: string): Entry {
    const entry = all.get(name);
    if (entry === undefined) throw unknownStore(name, [...all.keys()]);
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

  function view({ config, store, problem }: Entry): StoreView {
    return { config, store, problem, default: config.name === defaultName() };
  }

  return {
    known,
    view,
    defaultName,
    list: () => [...all.values()].map(view),
    use: async (name, work) => {
      const entry = known(name);
      const { store } = entry;
      if (store === undefined) throw unavailable(entry.config, entry.problem);
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

const published = (events: Events, type: 'added' | 'removed' | 'changed', { name, uri }: StoreConfig): void =>
  events.publish(`store.${type}`, name, name, { name, uri });

function createChanges(
  parts: StoresParts,
  entries: Entries,
  reading: Reading,
  exclusively: Exclusively,
): Pick<Stores, 'setDefault' | 'add' | 'remove'> {
  const { records, events } = parts;
  return {
    setDefault: (name) => {
      const entry = reading.known(name);
      records.settings.set('defaultStore', entry.config.name);
      published(events, 'changed', entry.config);
      return reading.view(entry);
    },
    add: (name, uri, scope) =>
      exclusively(scope, async () => {
        const config = parseStoreConfig(name, uri, 'api', parts.kinds);
        const present = entries.all.get(config.name);
        if (present?.config.uri === uri && present.problem === undefined) return reading.view(present);
        if (present !== undefined) throw taken(config.name);
        const entry = await entries.bring(config, scope);
        if (entry.problem !== undefined) {
          entries.all.delete(config.name);
          throw cannotAdd(entry.problem);
        }
        records.stores.put(config.name, uri);
        published(events, 'added', config);
        return reading.view(entry);
      }),
    remove: (name, scope) =>
      exclusively(scope, async () => {
        const entry = reading.known(name);
        if (entry.config.origin !== 'api') throw notOurs(entry.config);
        refuseWhileMounted(parts, entry.config);
        await entries.shut(entry, scope);
        entries.all.delete(entry.config.name);
        records.transaction(() => {
          records.stores.remove(entry.config.name);
          records.volumes.forgetStore(entry.config.name);
          giveUp(parts, entry.config.name);
        });
        published(events, 'removed', entry.config);
      }),
  };
}

/** What was interrupted on it can never be taken up again. */
function giveUp({ records, clock }: StoresParts, store: StoreName): void {
  const { code, reason, message, action } = removed(store);
  for (const operation of records.operations.unfinished()) {
    if (operation.store !== store) continue;
    records.operations.end(operation.id, 'canceled', clock.now(), { code, reason, message, action });
  }
}

function refuseWhileMounted({ mountedOn }: StoresParts, config: StoreConfig): void {
  const mounted = mountedOn(config.name);
  if (mounted.length > 0) throw stillMounted(config, mounted);
}

function createConfigure(
  parts: StoresParts,
  entries: Entries,
  reading: Reading,
  exclusively: Exclusively,
): Stores['configure'] {
  const { events, log } = parts;

  async function bringInLine(entry: Entry, next: StoreConfig | undefined, scope: Scope): Promise<void> {
    // Added by hand while the file was being read.
    if (next === undefined && entry.config.origin === 'api') return;
    if (next?.uri === entry.config.uri) {
      entry.config = next;
      return await entries.open(entry, scope);
    }
    refuseWhileMounted(parts, entry.config);
    if (next !== undefined) {
      if (await entries.replace(entry, next, scope)) published(events, 'changed', next);
      return;
    }
    await entries.shut(entry, scope);
    entries.all.delete(entry.config.name);
    published(events, 'removed', entry.config);
  }

  return (configs, preferred, scope) =>
    exclusively(scope, async () => {
      reading.prefer(preferred);
      const wanted = new Map(configs.map((config) => [config.name as string, config]));
      for (const entry of [...entries.all.values()]) {
        try {
          await bringInLine(entry, wanted.get(entry.config.name), scope);
        } catch (thrown) {
          log.warn('store stays as it is', { store: entry.config.name, why: stowageError(thrown).message });
        }
      }
      const fresh = configs.filter((config) => !entries.all.has(config.name));
      await Promise.all(
        fresh.map(async (config) => {
          await entries.bring(config, scope);
          published(events, 'added', config);
        }),
      );
    });
}
