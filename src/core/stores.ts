import { createKeyedLock } from '#base/keyed-lock.ts';
import { createLimiter } from '#base/limiter.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Events } from './events.ts';
import type { StoreCheck, StoreConfig, StoreName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { createStoreChanges, refuseWhileMounted } from './store-changes.ts';
import { checkDeadlineMs, checkOpen, notOpened, probeClosed, probeFrom } from './store-check.ts';
import { createStoreConfiguration, type Exclusively } from './store-configuration.ts';
import { askedPatienceMs, createStoreEntries, type StoreEntryParts } from './store-entries.ts';
import type { StoreIdentities } from './store-identity.ts';
import { createStoreLookup } from './store-lookup.ts';
import type { StoreView, UsableStoreView } from './store-view.ts';

/** The configured stores, for front ends and controllers, which must not call methods of a store. */
export interface ConfiguredStores {
  list(): readonly StoreView[];
  view(name: string): StoreView;
  readonly defaultName: StoreName | undefined;
  setDefault(name: string): StoreView;
  add(name: string, uri: string, scope: Scope): Promise<StoreView>;
  remove(name: string, scope: Scope): Promise<void>;
  /** `from`: check from the network of a container, from a network of an engine, or from a network namespace. */
  check(name: string, scope: Scope, from?: string): Promise<StoreCheck>;
  /**
   * Applies a new configuration. Does not touch stores that are open and unchanged. A store that fails to open stays
   * listed with its problem.
   */
  configure(configs: readonly StoreConfig[], preferred: string | undefined, scope: Scope): Promise<void>;
  /** Retries stores that could not be opened, and pending configuration changes. */
  retry(scope: Scope): Promise<void>;
  /** Accepts the store that is now at the location, although its identity differs from the former store. */
  accept(name: string, scope: Scope): Promise<void>;
}

/** The configured stores, for core only. */
export interface Stores extends ConfiguredStores {
  list(): readonly UsableStoreView[];
  view(name: string): UsableStoreView;
  /**
   * Runs `work` with the store, which stays open until it ends. Throws 'not-found', or 'unavailable' with the reason why
   * the store is not open.
   */
  use<T>(name: string, work: (store: Store, config: StoreConfig) => Promise<T>): Promise<T>;
  /** Like `use` for background work, which must end when `closing` is aborted because the store is about to close. */
  useInBackground<T>(name: string, work: (store: Store, closing: AbortSignal) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export interface StoresParts extends Omit<StoreEntryParts, 'identityOf'> {
  readonly records: Records;
  readonly identities: StoreIdentities;
  readonly events: Events;
  /** The store's volumes that are mounted on this node. A store with mounted volumes is not closed. */
  readonly mountedOn: (store: StoreName) => readonly string[];
}

const closeDeadlineMs = 5_000;
/** Each of these checks starts a process of about 40 MB in another network. */
const checksFromElsewhere = 3;

export function createStores(parts: StoresParts): Stores {
  const { clock, identities } = parts;
  const entries = createStoreEntries({ ...parts, identityOf: identities.known });
  const reading = createStoreLookup(parts, entries);
  const changing = createKeyedLock();
  const elsewhere = createLimiter(checksFromElsewhere);
  /** Applies one configuration at a time. That can take long, so adding, removing or checking a single store does not wait for it. */
  const exclusively: Exclusively = async (scope, work) => {
    using _ = await changing.hold(['configuration'], scope.signal);
    return await work();
  };
  const configuring = createStoreConfiguration(parts, entries, reading, exclusively);
  return {
    list: reading.list,
    view: (name) => reading.view(reading.entryOf(name)),
    use: reading.use,
    useInBackground: async (name, work) => {
      const entry = reading.entryOf(name);
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
    ...createStoreChanges(parts, entries, reading),
    ...configuring,
    check: async (name, scope, from) => {
      const known = reading.entryOf(name);
      if (from !== undefined)
        return await elsewhere.run(() => probeFrom(parts.kinds, known.config, from, scope, clock), scope.signal);
      if (known.store !== undefined) return await checkOpen(reading, name, scope, clock);
      const probed = await probeClosed(parts.kinds, known.config, scope, clock);
      // If the probe failed, opening would fail too and reveal nothing more.
      if (probed?.ok === false) return probed;
      // Look it up again, since it may have been removed while this waited.
      const found = reading.entryOf(name);
      await entries.open(found, scope, checkDeadlineMs);
      const { store, config, problem } = found;
      if (store === undefined) return notOpened(probed, config, problem);
      return probed ?? (await checkOpen(reading, name, scope, clock));
    },
    accept: async (name, scope) => {
      const entry = reading.entryOf(name);
      if (entry.problem?.reason !== 'store-identity') return;
      refuseWhileMounted(parts, entry.config);
      // The running attempt still expects the old identity.
      if (entry.opening !== undefined) await endsWithin(entry.opening, askedPatienceMs, clock);
      identities.forget(name);
      await entries.open(entry, scope, askedPatienceMs);
    },
    close: async () => {
      const all = [...entries.all.values(), ...entries.unlisted.values()];
      // A store that is still opening must not finish, and keep its lock, after the shutdown.
      for (const entry of all) entries.drop(entry);
      await endsWithin(Promise.all(all.map((entry) => entry.store?.close())), closeDeadlineMs, clock);
    },
  };
}
