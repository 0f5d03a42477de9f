import { isDeepStrictEqual } from 'node:util';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/patience.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { StoreCheck, StoreConfig, StoreName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { checkClosed, checkDeadlineMs, checkOpen } from './store-check.ts';
import { askedPatienceMs, createEntries, type Entries, type Entry, type EntryParts } from './store-entries.ts';
import { cannotAdd, notOurs, removed, stillMounted, taken, unavailable, unknownStore } from './store-errors.ts';
import type { Identities } from './store-identity.ts';
import { parseStoreConfig } from './store-uri.ts';

export interface StoreView {
  readonly config: StoreConfig;
  readonly store: Store | undefined;
  readonly problem: StowageError | undefined;
  readonly default: boolean;
  /** A change in the configuration that could not be made yet, and why. */
  readonly pending: string | undefined;
}

export interface Stores {
  list(): readonly StoreView[];
  view(name: string): StoreView;
  /**
   * For the length of `work` the store stays open. Throws 'not-found', or 'unavailable' with the reason it cannot be
   * opened.
   */
  use<T>(name: string, work: (store: Store, config: StoreConfig) => Promise<T>): Promise<T>;
  /** The same for work that nobody waits for: it must end when the store is to be closed. */
  useBehind<T>(name: string, work: (store: Store, closing: AbortSignal) => Promise<T>): Promise<T>;
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
  /** Tries again what could not be opened, and the changes that could not be made. */
  retry(scope: Scope): Promise<void>;
  /** What lies in the store's place is the store from now on, although it is not the one that was there. */
  accept(name: string, scope: Scope): Promise<void>;
  close(): Promise<void>;
}

export interface StoresParts extends Omit<EntryParts, 'identityOf'> {
  readonly records: Records;
  readonly identities: Identities;
  readonly events: Events;
  /** Volumes of that store that are mounted here: such a store is not closed. */
  readonly mountedOn: (store: StoreName) => readonly string[];
}

const usePatienceMs = 5_000;
const closeDeadlineMs = 5_000;

export function createStores(parts: StoresParts): Stores {
  const { clock, identities } = parts;
  const entries = createEntries({ ...parts, identityOf: identities.known });
  const reading = createReading(parts, entries);
  const changing = createKeyedLock();
  /** One change at a time: two of them could otherwise both open the same folder. */
  const exclusively: Exclusively = async (scope, work) => {
    using _ = await changing.hold(['configuration'], scope.signal);
    return await work();
  };
  const configuring = createConfiguring(parts, entries, reading, exclusively);
  return {
    list: reading.list,
    view: (name) => reading.view(reading.known(name)),
    use: reading.use,
    useBehind: async (name, work) => {
      const entry = reading.known(name);
      entry.background++;
      try {
        return await reading.use(name, (store) => work(store, entry.closing.signal));
      } finally {
        entry.background--;
      }
    },
    get defaultName() {
      return reading.defaultName();
    },
    ...createChanges(parts, entries, reading, exclusively),
    ...configuring,
    check: async (name, scope) => {
      const opened = async (): Promise<Entry> => {
        // Looked up again where nobody else changes it: it may have been removed while this waited.
        const found = reading.known(name);
        await entries.open(found, scope, checkDeadlineMs);
        return found;
      };
      const known = reading.known(name);
      const entry = known.store === undefined ? await exclusively(scope, opened) : known;
      if (entry.store !== undefined) return await checkOpen(reading, name, scope, clock);
      return await checkClosed(parts.kinds, entry.config, entry.problem, scope, clock);
    },
    accept: (name, scope) =>
      exclusively(scope, async () => {
        const entry = reading.known(name);
        if (entry.problem?.reason !== 'store-identity') return;
        refuseWhileMounted(parts, entry.config);
        identities.forget(name);
        await entries.open(entry, scope, askedPatienceMs);
      }),
    close: async () => {
      const all = [...entries.all.values()];
      // One that is still being opened must not come to life, and keep its lock, when all is over.
      for (const entry of all) entries.drop(entry);
      await endsWithin(Promise.all(all.map((entry) => entry.store?.close())), closeDeadlineMs, clock);
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

function createReading({ records, clock }: StoresParts, { all }: Entries): Reading {
  let preferred: string | undefined;

  function known(name: string): Entry {
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

  function view({ config, store, problem, pending }: Entry): StoreView {
    return { config, store, problem, default: config.name === defaultName(), pending: pending?.why };
  }

  return {
    known,
    view,
    defaultName,
    list: () => [...all.values()].map(view),
    use: async (name, work) => {
      const entry = known(name);
      // Just after the start; a disk that hangs takes longer than anybody should wait.
      if (entry.opening !== undefined) await endsWithin(entry.opening, usePatienceMs, clock);
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
        if (present !== undefined) throw taken(present.config);
        const entry = await entries.bring(config, scope, askedPatienceMs);
        if (entry.problem !== undefined) {
          entries.drop(entry);
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
        await entries.shut(entry);
        entries.drop(entry);
        parts.identities.forget(entry.config.name);
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

/** Nothing but what core itself decides about the volumes: that is so from one moment to the next. */
function opensAlike(a: StoreConfig, b: StoreConfig): boolean {
  const opened = ({ uri, options, policy }: StoreConfig): unknown[] => [
    uri.replace(/\?.*$/s, ''),
    policy.readOnly,
    options,
  ];
  return isDeepStrictEqual(opened(a), opened(b));
}

function createConfiguring(
  parts: StoresParts,
  entries: Entries,
  reading: Reading,
  exclusively: Exclusively,
): Pick<Stores, 'configure' | 'retry'> {
  const { events, log } = parts;

  async function bringInLine(entry: Entry, next: StoreConfig | undefined, scope: Scope): Promise<void> {
    // Added by hand while the file was being read.
    if (next === undefined && entry.config.origin === 'api') return;
    if (next !== undefined && opensAlike(next, entry.config)) {
      const before = entry.config;
      entry.config = next;
      if (before.uri !== next.uri) published(events, 'changed', next);
      return await entries.open(entry, scope);
    }
    refuseWhileMounted(parts, entry.config);
    if (next !== undefined) {
      if (await entries.replace(entry, next, scope)) published(events, 'changed', next);
      return;
    }
    await entries.shut(entry);
    entries.drop(entry);
    published(events, 'removed', entry.config);
  }

  /** What cannot be done now is tried again at every `retry`. */
  async function follow(entry: Entry, next: StoreConfig | undefined, scope: Scope): Promise<void> {
    const before = entry.pending;
    entry.pending = undefined;
    try {
      await bringInLine(entry, next, scope);
    } catch (thrown) {
      const { message } = stowageError(thrown);
      const what = next === undefined ? 'it is no longer in the configuration' : 'its options changed';
      entry.pending = { config: next, why: `${what}, which waits: ${message}` };
      if (before === undefined) log.warn('store stays as it is for now', { store: entry.config.name, why: message });
    }
  }

  /** One that was added by hand may have been removed by hand while this waited for its turn. */
  const isStillThere = ({ origin, name, uri }: StoreConfig): boolean =>
    origin !== 'api' || parts.records.stores.list().some((row) => row.name === name && row.uri === uri);

  return {
    configure: (given, preferred, scope) =>
      exclusively(scope, async () => {
        reading.prefer(preferred);
        const configs = given.filter(isStillThere);
        const wanted = new Map(configs.map((config) => [config.name as string, config]));
        for (const entry of [...entries.all.values()]) await follow(entry, wanted.get(entry.config.name), scope);
        const fresh = configs.filter((config) => !entries.all.has(config.name));
        // Those that can be written first: of two that show the same directory, that one has the volumes.
        for (const readOnly of [false, true]) {
          const some = fresh.filter(({ policy }) => policy.readOnly === readOnly);
          await Promise.all(
            some.map(async (config) => {
              await entries.bring(config, scope);
              published(events, 'added', config);
            }),
          );
        }
      }),
    retry: (scope) =>
      exclusively(scope, async () => {
        // Not while it is in use: to wait for that would keep everybody out of it again and again.
        for (const entry of [...entries.all.values()])
          if (entry.pending !== undefined && entry.users <= entry.background)
            await follow(entry, entry.pending.config, scope);
        await Promise.all([...entries.all.values()].map((entry) => entries.open(entry, scope)));
      }),
  };
}
