import { createKeyedLock } from '#base/keyed-lock.ts';
import { createLimiter } from '#base/limiter.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { StowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { StoreCheck, StoreConfig, StoreName } from './model.ts';
import type { Placement } from './placement.ts';
import type { Enforcement, Records, Store } from './ports.ts';
import { createStoreChanges, refuseWhileMounted } from './store-changes.ts';
import { checkDeadlineMs, checkOpen, notOpened, probeClosed, probeFrom } from './store-check.ts';
import { createStoreConfiguration, type Exclusively } from './store-configuration.ts';
import { askedPatienceMs, createStoreEntries, type StoreEntryParts } from './store-entries.ts';
import type { StoreIdentities } from './store-identity.ts';
import { createStoreLookup } from './store-lookup.ts';

/** What is known of a store while it is open. Nothing in it asks the store. */
export type OpenStore = Pick<Store, 'identity' | 'access' | 'filesystemFor'> & {
  readonly enforcement?: Pick<Enforcement, 'always'>;
};

export interface StoreView {
  readonly config: StoreConfig;
  /** Undefined: it is not open. */
  readonly store: OpenStore | undefined;
  readonly problem: StowageError | undefined;
  readonly placement: Placement;
  /** The client's name in what users see (`bind`, `loop`, …). */
  readonly clientName: string;
  readonly default: boolean;
  /** A change in the configuration that could not be made yet, and why. */
  readonly pending: string | undefined;
}

/** True if the store is open and its policy is not read-only. */
export const isWritable = ({ store, config }: Pick<StoreView, 'store' | 'config'>): boolean =>
  store !== undefined && !config.policy.readOnly;

/** True if the store is open and holds every volume to its size. */
export const enforcesSizes = ({ store }: Pick<StoreView, 'store'>): boolean => store?.enforcement?.always === true;

/** The configured stores. Front ends and controllers get this: it has no way to the verbs of a store. */
export interface ConfiguredStores {
  list(): readonly StoreView[];
  view(name: string): StoreView;
  readonly defaultName: StoreName | undefined;
  setDefault(name: string): StoreView;
  add(name: string, uri: string, scope: Scope): Promise<StoreView>;
  remove(name: string, scope: Scope): Promise<void>;
  /** From: in the network of a container, a network of an engine, or a namespace. */
  check(name: string, scope: Scope, from?: string): Promise<StoreCheck>;
  /**
   * What the file (or nothing) says now. Stores that are open and unchanged are not touched; one that fails to open
   * stays listed with its problem.
   */
  configure(configs: readonly StoreConfig[], preferred: string | undefined, scope: Scope): Promise<void>;
  /** Tries again what could not be opened, and the changes that could not be made. */
  retry(scope: Scope): Promise<void>;
  /** What lies in the store's place is the store from now on, although it is not the one that was there. */
  accept(name: string, scope: Scope): Promise<void>;
}

/** A store with its verbs, for core. */
export interface UsableStoreView extends StoreView {
  readonly store: Store | undefined;
}

/** The same, for core. */
export interface Stores extends ConfiguredStores {
  list(): readonly UsableStoreView[];
  view(name: string): UsableStoreView;
  /**
   * For the length of `work` the store stays open. Throws 'not-found', or 'unavailable' with the reason it cannot be
   * opened.
   */
  use<T>(name: string, work: (store: Store, config: StoreConfig) => Promise<T>): Promise<T>;
  /** The same for work that nobody waits for: it must end when the store is to be closed. */
  useInBackground<T>(name: string, work: (store: Store, closing: AbortSignal) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export interface StoresParts extends Omit<StoreEntryParts, 'identityOf'> {
  readonly records: Records;
  readonly identities: StoreIdentities;
  readonly events: Events;
  /** Volumes of that store that are mounted here: such a store is not closed. */
  readonly mountedOn: (store: StoreName) => readonly string[];
}

const closeDeadlineMs = 5_000;
/** Each starts a process in another network, of about 40 MB. */
const checksFromElsewhere = 3;

export function createStores(parts: StoresParts): Stores {
  const { clock, identities } = parts;
  const entries = createStoreEntries({ ...parts, identityOf: identities.known });
  const reading = createStoreLookup(parts, entries);
  const changing = createKeyedLock();
  const elsewhere = createLimiter(checksFromElsewhere);
  /** One reading of the configuration at a time: it may wait long, so who adds, removes or checks one store does not. */
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
      // Then it cannot be opened either: to wait for that would tell nothing more.
      if (probed?.ok === false) return probed;
      // Looked up again: it may have been removed while this waited.
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
      // That one still wants what was there before.
      if (entry.opening !== undefined) await endsWithin(entry.opening, askedPatienceMs, clock);
      identities.forget(name);
      await entries.open(entry, scope, askedPatienceMs);
    },
    close: async () => {
      const all = [...entries.all.values(), ...entries.unlisted.values()];
      // One that is still being opened must not come to life, and keep its lock, when all is over.
      for (const entry of all) entries.drop(entry);
      await endsWithin(Promise.all(all.map((entry) => entry.store?.close())), closeDeadlineMs, clock);
    },
  };
}
