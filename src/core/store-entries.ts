import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import type { Store, StoreContext, StoreKind } from './ports.ts';
import { storeBusy, storeClosing, storeOpening } from './store-errors.ts';
import { refusePolicy } from './store-facets.ts';
import { schemeOf } from './store-uri.ts';

/** Brings a freshly opened store and our records of it together, before anybody may use it. */
export type RecoverStore = (store: Store, config: StoreConfig, scope: Scope) => Promise<void>;

export interface StoreEntry {
  config: StoreConfig;
  store: Store | undefined;
  problem: StowageError | undefined;
  /** Under way, also when nobody waits for it any more. */
  opening: Promise<void> | undefined;
  /** Under way: whoever else wants it shut waits for the same. */
  shutting: Promise<void> | undefined;
  users: number;
  /** Of these, such as end by themselves when the store is to be closed. */
  background: number;
  idle: PromiseWithResolvers<void> | undefined;
  /** Ends what is done in the background, so that the store can be closed. */
  closing: AbortController;
  /** A change that waits until it can be made. */
  pending: { readonly config: StoreConfig | undefined; readonly why: string } | undefined;
}

export interface StoreEntryParts {
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly clock: Clock;
  readonly log: Log;
  readonly context: StoreContext;
  /** What the store at that place called itself when it was last open. */
  readonly identityOf: (config: StoreConfig) => string | undefined;
  readonly recover: RecoverStore;
}

/** The configured stores, open or with the reason why not. One that was shut is never opened again: another takes its place. */
export interface StoreEntries {
  readonly all: Map<string, StoreEntry>;
  /** Those that are to become one of them once they are open. */
  readonly unlisted: ReadonlyMap<string, StoreEntry>;
  /** Opens it, or notes the problem. Open already: nothing. One that takes longer goes on being opened behind it. */
  open(entry: StoreEntry, scope: Scope, patienceMs?: number): Promise<void>;
  /** Lists it and opens it. Whatever else has its name, or is to have it, is dropped. */
  addAndOpen(config: StoreConfig, scope: Scope, patienceMs?: number): Promise<StoreEntry>;
  /** Opens it without listing it. */
  openUnlisted(config: StoreConfig, scope: Scope, patienceMs?: number): Promise<StoreEntry>;
  /** Lists what was prepared. Throws when it was dropped meanwhile. */
  add(entry: StoreEntry): void;
  /** Waits until nobody uses it, and closes it. Throws 'busy' when that takes too long: it then stays open. */
  shut(entry: StoreEntry): Promise<void>;
  /** It is no longer one of them; what is under way to open it ends, and touches nothing any more. */
  drop(entry: StoreEntry): void;
  /** In the place of one that was shut; `worked`: it was open. False: the new options do not work, so it has the old ones. */
  replace(entry: StoreEntry, config: StoreConfig, worked: boolean, scope: Scope): Promise<boolean>;
}

/**
 * A disk or server that needs longer keeps nobody from starting, or from using the other stores. Less than a second in all:
 * container engines wait for whoever answers at their sockets, and whoever uses this one store waits for it (`use`).
 */
const openPatienceMs = 500;
/** Where somebody asked for this one store. */
export const askedPatienceMs = 60_000;
const openDeadlineMs = 30_000;
const drainDeadlineMs = 30_000;
const closeDeadlineMs = 5_000;

export function createStoreEntries(parts: StoreEntryParts): StoreEntries {
  const { clock, log } = parts;
  const all = new Map<string, StoreEntry>();
  const coming = new Map<string, StoreEntry>();
  /** Openings of entries that are none any more, on disks that do not answer. Nobody begins another one beside them. */
  const abandoned = new Map<string, Promise<void>>();

  async function attempt(entry: StoreEntry, scope: Scope): Promise<void> {
    const { config, closing: dropped } = entry;
    try {
      const store = await openTaken(parts, config, {
        ...scope,
        signal: AbortSignal.any([scope.signal, dropped.signal]),
      });
      if (dropped.signal.aborted) return await store.close();
      entry.store = store;
      entry.problem = undefined;
      log.info('store open', { store: config.name, uri: config.uri });
    } catch (thrown) {
      if (dropped.signal.aborted) return;
      entry.problem = stowageError(thrown);
      const { message, action } = entry.problem;
      log.warn('store cannot be opened', { store: config.name, why: message, action });
    } finally {
      entry.opening = undefined;
    }
  }

  async function open(entry: StoreEntry, scope: Scope, patienceMs = openPatienceMs): Promise<void> {
    if (entry.store !== undefined || entry.closing.signal.aborted) return;
    if (abandoned.has(entry.config.name)) {
      entry.problem ??= storeOpening(entry.config.name);
      return;
    }
    entry.opening ??= attempt(entry, scope);
    if (!(await endsWithin(entry.opening, patienceMs, clock))) entry.problem ??= storeOpening(entry.config.name);
  }

  async function bring(config: StoreConfig, scope: Scope, patienceMs?: number): Promise<StoreEntry> {
    const entry = newEntry(config);
    for (const before of [all.get(config.name), coming.get(config.name)]) if (before !== undefined) drop(before);
    all.set(config.name, entry);
    await open(entry, scope, patienceMs);
    return entry;
  }

  function drop(entry: StoreEntry): void {
    const { name } = entry.config;
    for (const map of [all, coming]) if (map.get(name) === entry) map.delete(name);
    entry.closing.abort(storeClosing(name));
    if (entry.opening === undefined) return;
    const left = entry.opening.finally(() => abandoned.delete(name));
    abandoned.set(name, left);
  }

  function shut(entry: StoreEntry): Promise<void> {
    entry.shutting ??= drainAndClose(entry).finally(() => {
      entry.shutting = undefined;
    });
    return entry.shutting;
  }

  async function drainAndClose(entry: StoreEntry): Promise<void> {
    const { store } = entry;
    if (store === undefined) return entry.closing.abort(storeClosing(entry.config.name));
    entry.store = undefined;
    entry.problem = storeClosing(entry.config.name);
    entry.closing.abort(entry.problem);
    if (await isIdle(entry, clock)) {
      // A disk that does not answer may keep even this; nobody else shall wait for it.
      if (!(await endsWithin(store.close(), closeDeadlineMs, clock)))
        log.warn('store is still being closed', { store: entry.config.name });
      return;
    }
    const { users } = entry;
    Object.assign(entry, { store, problem: undefined, closing: new AbortController() });
    throw storeBusy(entry.config.name, users);
  }

  return {
    all,
    unlisted: coming,
    open,
    addAndOpen: bring,
    shut,
    drop,
    openUnlisted: async (config, scope, patienceMs) => {
      const entry = newEntry(config);
      coming.set(config.name, entry);
      await open(entry, scope, patienceMs);
      return entry;
    },
    add: (entry) => {
      const { name } = entry.config;
      if (!coming.delete(name) || entry.closing.signal.aborted) throw storeClosing(name);
      all.set(name, entry);
    },
    replace: async (entry, config, worked, scope) => {
      const brought = await bring(config, scope, askedPatienceMs);
      const { problem } = brought;
      if (problem === undefined || problem.reason === 'store-opening' || !worked) return true;
      // Removed by hand meanwhile.
      if (all.get(config.name) !== brought) return true;
      const { message, action } = problem;
      log.warn('store keeps its old options', { store: config.name, why: message, action });
      await bring(entry.config, scope);
      return false;
    },
  };
}

function newEntry(config: StoreConfig): StoreEntry {
  return {
    config,
    store: undefined,
    problem: undefined,
    opening: undefined,
    shutting: undefined,
    pending: undefined,
    users: 0,
    background: 0,
    idle: undefined,
    closing: new AbortController(),
  };
}

async function isIdle(entry: StoreEntry, clock: Clock): Promise<boolean> {
  if (entry.users === 0) return true;
  entry.idle = Promise.withResolvers();
  using _late = clock.after(drainDeadlineMs, entry.idle.resolve);
  await entry.idle.promise;
  entry.idle = undefined;
  return entry.users === 0;
}

async function openTaken(parts: StoreEntryParts, config: StoreConfig, scope: Scope): Promise<Store> {
  const scheme = schemeOf(config.uri);
  const kind = parts.kinds.get(scheme);
  if (kind === undefined) throw new Error(`no store kind ${scheme}`);
  const context = { ...parts.context, identity: parts.identityOf(config) };
  using limit = parts.clock.deadline(openDeadlineMs, scope.signal);
  const store = await kind.open(config, config.policy, context, { ...scope, signal: limit.signal });
  try {
    // It may have been given up while it was opened; then another one has its name, and its records.
    scope.signal.throwIfAborted();
    refusePolicy(store, config.policy);
    await parts.recover(store, config, scope);
    return store;
  } catch (cause) {
    await store.close();
    throw cause;
  }
}
