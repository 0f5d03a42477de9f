import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import type { Store, StoreContext, StoreKind } from './ports.ts';
import { storeBusy, storeClosing, storeOpening } from './store-errors.ts';
import { refusePolicy } from './store-facets.ts';
import { schemeOf } from './store-scheme.ts';

/** Recovers a newly opened store before anybody may use it. */
export type RecoverStore = (store: Store, config: StoreConfig, scope: Scope) => Promise<void>;

export interface StoreEntry {
  config: StoreConfig;
  store: Store | undefined;
  problem: StowageError | undefined;
  /** The attempt to open it that is in progress, even if nobody waits for it any more. */
  opening: Promise<void> | undefined;
  /** The close that is in progress. Concurrent callers share it. */
  closeInProgress: Promise<void> | undefined;
  users: number;
  /** How many of the users stop by themselves when the store is about to close. */
  backgroundUsers: number;
  idle: PromiseWithResolvers<void> | undefined;
  /** Aborts background work, so that the store can close. */
  closing: AbortController;
  /** A configuration change that is not possible yet. */
  pending: { readonly config: StoreConfig | undefined; readonly why: string } | undefined;
}

export interface StoreEntryParts {
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly clock: Clock;
  readonly log: Log;
  readonly context: StoreContext;
  /** The identity of the store at this location when it was last open. */
  readonly identityOf: (config: StoreConfig) => string | undefined;
  readonly recover: RecoverStore;
}

/** The configured stores, open or with a problem. An entry that was closed is never reopened; a new entry replaces it. */
export interface StoreEntries {
  readonly all: Map<string, StoreEntry>;
  /** Entries that are being opened and are not yet in `all`. */
  readonly unlisted: ReadonlyMap<string, StoreEntry>;
  /**
   * Opens the store or records the problem. Does nothing if it is open. If it takes longer than `timeoutMs`, opening continues in the
   * background.
   */
  open(entry: StoreEntry, scope: Scope, timeoutMs?: number): Promise<void>;
  /** Adds an entry and opens it. Drops any other entry with the same name. */
  addAndOpen(config: StoreConfig, scope: Scope, timeoutMs?: number): Promise<StoreEntry>;
  /** Opens a store without adding it to `all`. */
  openUnlisted(config: StoreConfig, scope: Scope, timeoutMs?: number): Promise<StoreEntry>;
  /** Adds an entry from `openUnlisted` to `all`. Throws if it was dropped in the meantime. */
  add(entry: StoreEntry): void;
  /** Waits until the store is unused, then closes it. Throws 'busy' if that takes too long; the store then stays open. */
  close(entry: StoreEntry): Promise<void>;
  /** Removes the entry and aborts an attempt to open it. */
  drop(entry: StoreEntry): void;
  /** Replaces an entry that was closed. `wasOpen`: it was open before. False: the new options do not work, so it keeps the old ones. */
  replace(entry: StoreEntry, config: StoreConfig, wasOpen: boolean, scope: Scope): Promise<boolean>;
}

/**
 * How long the start waits for a store. A slow disk or server must not delay the start or other stores. Less than a second: container
 * engines wait for the plugin socket meanwhile. Requests that need this store wait longer (`use`).
 */
const startOpenTimeoutMs = 500;
/** How long a request that explicitly opens one store waits for it. */
export const requestedOpenTimeoutMs = 60_000;
const openDeadlineMs = 30_000;
const drainDeadlineMs = 30_000;
const closeDeadlineMs = 5_000;

export function createStoreEntries(parts: StoreEntryParts): StoreEntries {
  const { clock, log } = parts;
  const all = new Map<string, StoreEntry>();
  const unlisted = new Map<string, StoreEntry>();
  /** Attempts to open dropped entries, on disks that do not answer. No other attempt starts for the same name meanwhile. */
  const abandoned = new Map<string, Promise<void>>();

  async function attemptOpen(entry: StoreEntry, scope: Scope): Promise<void> {
    const { config, closing: dropped } = entry;
    try {
      const store = await openAndRecover(parts, config, {
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

  async function open(entry: StoreEntry, scope: Scope, timeoutMs = startOpenTimeoutMs): Promise<void> {
    if (entry.store !== undefined || entry.closing.signal.aborted) return;
    if (abandoned.has(entry.config.name)) {
      entry.problem ??= storeOpening(entry.config.name);
      return;
    }
    entry.opening ??= attemptOpen(entry, scope);
    if (!(await endsWithin(entry.opening, timeoutMs, clock))) entry.problem ??= storeOpening(entry.config.name);
  }

  async function addAndOpen(config: StoreConfig, scope: Scope, timeoutMs?: number): Promise<StoreEntry> {
    const entry = newEntry(config);
    for (const before of [all.get(config.name), unlisted.get(config.name)]) if (before !== undefined) drop(before);
    all.set(config.name, entry);
    await open(entry, scope, timeoutMs);
    return entry;
  }

  function drop(entry: StoreEntry): void {
    const { name } = entry.config;
    for (const map of [all, unlisted]) if (map.get(name) === entry) map.delete(name);
    entry.closing.abort(storeClosing(name));
    if (entry.opening === undefined) return;
    const abandonedOpening = entry.opening.finally(() => abandoned.delete(name));
    abandoned.set(name, abandonedOpening);
  }

  function close(entry: StoreEntry): Promise<void> {
    entry.closeInProgress ??= drainAndClose(entry).finally(() => {
      entry.closeInProgress = undefined;
    });
    return entry.closeInProgress;
  }

  async function drainAndClose(entry: StoreEntry): Promise<void> {
    const { store } = entry;
    if (store === undefined) return entry.closing.abort(storeClosing(entry.config.name));
    entry.store = undefined;
    entry.problem = storeClosing(entry.config.name);
    entry.closing.abort(entry.problem);
    if (await waitUntilIdle(entry, clock)) {
      // Closing can hang on a disk that does not answer, so do not wait forever.
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
    unlisted,
    open,
    addAndOpen,
    close,
    drop,
    openUnlisted: async (config, scope, timeoutMs) => {
      const entry = newEntry(config);
      unlisted.set(config.name, entry);
      await open(entry, scope, timeoutMs);
      return entry;
    },
    add: (entry) => {
      const { name } = entry.config;
      if (!unlisted.delete(name) || entry.closing.signal.aborted) throw storeClosing(name);
      all.set(name, entry);
    },
    replace: async (entry, config, wasOpen, scope) => {
      const added = await addAndOpen(config, scope, requestedOpenTimeoutMs);
      const { problem } = added;
      if (problem === undefined || problem.reason === 'store-opening' || !wasOpen) return true;
      // The store was removed through the API in the meantime.
      if (all.get(config.name) !== added) return true;
      const { message, action } = problem;
      log.warn('store keeps its old options', { store: config.name, why: message, action });
      await addAndOpen(entry.config, scope);
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
    closeInProgress: undefined,
    pending: undefined,
    users: 0,
    backgroundUsers: 0,
    idle: undefined,
    closing: new AbortController(),
  };
}

async function waitUntilIdle(entry: StoreEntry, clock: Clock): Promise<boolean> {
  if (entry.users === 0) return true;
  entry.idle = Promise.withResolvers();
  using _deadline = clock.after(drainDeadlineMs, entry.idle.resolve);
  await entry.idle.promise;
  entry.idle = undefined;
  return entry.users === 0;
}

async function openAndRecover(parts: StoreEntryParts, config: StoreConfig, scope: Scope): Promise<Store> {
  const scheme = schemeOf(config.uri);
  const kind = parts.kinds.get(scheme);
  if (kind === undefined) throw new Error(`no store kind ${scheme}`);
  const context = { ...parts.context, identity: parts.identityOf(config) };
  using limit = parts.clock.deadline(openDeadlineMs, scope.signal);
  const store = await kind.open(config, config.policy, context, { ...scope, signal: limit.signal });
  try {
    // The entry may have been dropped while it was opening; then its name and records belong to another store.
    scope.signal.throwIfAborted();
    refusePolicy(store, config.policy);
    await parts.recover(store, config, scope);
    return store;
  } catch (cause) {
    await store.close();
    throw cause;
  }
}
