import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import type { Store, StoreContext, StoreKind } from './ports.ts';
import { closing } from './store-errors.ts';

/** Brings a freshly opened store and our records of it together, before anybody may use it. */
export type TakeUp = (store: Store, config: StoreConfig, scope: Scope) => Promise<void>;

export interface Entry {
  config: StoreConfig;
  store: Store | undefined;
  problem: StowageError | undefined;
  users: number;
  idle: PromiseWithResolvers<void> | undefined;
}

export interface EntryParts {
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly clock: Clock;
  readonly log: Log;
  readonly context: StoreContext;
  readonly takeUp: TakeUp;
}

/** The configured stores, open or with the reason why not. Whoever changes them does so one at a time. */
export interface Entries {
  readonly all: Map<string, Entry>;
  /** Opens it, or notes the problem. Open already: nothing. */
  open(entry: Entry, scope: Scope): Promise<void>;
  /** Lists it and opens it. */
  bring(config: StoreConfig, scope: Scope): Promise<Entry>;
  /** Waits until nobody uses it, for a while, and closes it. */
  shut(entry: Entry, scope: Scope): Promise<void>;
  /** False: the new options do not work, so it goes on with the old ones. */
  replace(entry: Entry, config: StoreConfig, scope: Scope): Promise<boolean>;
}

const openDeadlineMs = 30_000;
const drainDeadlineMs = 60_000;

export function createEntries(parts: EntryParts): Entries {
  const { clock, log } = parts;
  const all = new Map<string, Entry>();

  async function open(entry: Entry, scope: Scope): Promise<void> {
    const { config } = entry;
    if (entry.store !== undefined) return;
    try {
      entry.store = await openTaken(parts, config, scope);
      entry.problem = undefined;
      log.info('store open', { store: config.name, uri: config.uri });
    } catch (thrown) {
      entry.problem = stowageError(thrown);
      const { message, action } = entry.problem;
      log.warn('store cannot be opened', { store: config.name, why: message, action });
    }
  }

  async function bring(config: StoreConfig, scope: Scope): Promise<Entry> {
    const entry: Entry = { config, store: undefined, problem: undefined, users: 0, idle: undefined };
    all.set(config.name, entry);
    await open(entry, scope);
    return entry;
  }

  async function shut(entry: Entry, scope: Scope): Promise<void> {
    const { store } = entry;
    entry.store = undefined;
    entry.problem ??= closing(entry.config.name);
    if (entry.users > 0) {
      entry.idle = Promise.withResolvers();
      const quit = new AbortController();
      const late = clock.sleep(drainDeadlineMs, quit.signal).catch(() => undefined);
      await Promise.race([entry.idle.promise, late]);
      quit.abort();
      if (entry.users > 0)
        scope.log.warn('store closed while in use', { store: entry.config.name, users: entry.users });
    }
    await store?.close();
  }

  return {
    all,
    open,
    bring,
    shut,
    replace: async (entry, config, scope) => {
      const worked = entry.store !== undefined;
      await shut(entry, scope);
      const { problem } = await bring(config, scope);
      if (problem === undefined || !worked) return true;
      const { message, action } = problem;
      log.warn('store keeps its old options', { store: config.name, why: message, action });
      await bring(entry.config, scope);
      return false;
    },
  };
}

async function openTaken(parts: EntryParts, config: StoreConfig, scope: Scope): Promise<Store> {
  const scheme = config.uri.slice(0, config.uri.indexOf(':'));
  const kind = parts.kinds.get(scheme);
  if (kind === undefined) throw new Error(`no store kind ${scheme}`);
  using limit = parts.clock.deadline(openDeadlineMs, scope.signal);
  const store = await kind.open(config, config.policy, parts.context, { ...scope, signal: limit.signal });
  try {
    await parts.takeUp(store, config, scope);
    return store;
  } catch (cause) {
    await store.close();
    throw cause;
  }
}
