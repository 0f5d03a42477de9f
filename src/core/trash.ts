import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { isAccessDenied } from './access-denial.ts';
import type { DeletionSteps } from './deletion-steps.ts';
import { StowageError, stowageError } from './errors.ts';
import { createFairPass, type FairPass } from './fair-pass.ts';
import { nameKey, volumeKey } from './lock-keys.ts';
import type { TrashEntry, Volume, VolumeId } from './model.ts';
import { isVolumeId, quoted, storeName, volumeName } from './names.ts';
import type { Call, Operations } from './operations.ts';
import type { Records } from './ports.ts';
import { describeUnsearched, notAnswering } from './store-errors.ts';
import type { StoreLimits } from './store-limits.ts';
import type { StoreLiveness } from './store-liveness.ts';
import { isWritable, type StoreView } from './store-view.ts';
import type { Stores } from './stores.ts';
import { volumeExists } from './volume-errors.ts';

/** The trash of several stores, newest first. */
export interface TrashList {
  readonly entries: readonly TrashEntry[];
  /** The stores that did not answer, whose trash is missing from the list. */
  readonly unanswered: readonly string[];
}

export interface TrashFinder {
  list(stores: readonly string[], scope: Scope): Promise<TrashList>;
  /** The trash of one store, newest first. Throws if the store does not answer. */
  listStore(store: string, scope: Scope): Promise<readonly TrashEntry[]>;
  /** Throws 'not-found' only if every store answered. */
  find(id: string, isAllowed: (store: string) => boolean, scope: Scope): Promise<TrashEntry>;
}

/** Restores under the old name, or under `name`. */
export type RestoreVolume = (
  id: string,
  name: string | undefined,
  isAllowed: (store: string) => boolean,
  call: Call,
) => Promise<Volume>;

export interface TrashPurge {
  purge(id: string, isAllowed: (store: string) => boolean, call: Call): Promise<void>;
  /** Purges entries whose retention has expired. */
  purgeExpired(scope: Scope): Promise<void>;
  /** Cancels the work that `expire` started. */
  stop(): void;
}

export interface TrashParts {
  readonly records: Pick<Records, 'volumes'>;
  readonly stores: Pick<Stores, 'list' | 'view' | 'use'>;
  readonly operations: Operations;
  readonly limits: StoreLimits;
  readonly liveness: Pick<StoreLiveness, 'findSilent' | 'denialOf'>;
  readonly clock: Clock;
}

const listTimeoutMs = 10_000;
const expireWaitMs = 20_000;
const expireDeadlineMs = 600_000;
const purgeTimeoutMs = 60_000;

export function createTrashFinder({
  stores,
  liveness,
  clock,
}: Pick<TrashParts, 'stores' | 'liveness' | 'clock'>): TrashFinder {
  async function listOne(name: string, scope: Scope): Promise<readonly TrashEntry[]> {
    const listing = stores.use(name, async ({ trash }) => (await trash?.list(scope)) ?? []);
    if (await endsWithin(listing, listTimeoutMs, clock)) return await listing;
    await liveness.findSilent([storeName(name)], scope);
    const denial = liveness.denialOf(storeName(name));
    throw denial === undefined ? trashNotAnswering(name) : notAnswering(name, denial);
  }

  /** Undefined: the store did not answer. The other stores are listed anyway. */
  async function listIfAnswering(name: string, scope: Scope): Promise<readonly TrashEntry[] | undefined> {
    try {
      return await listOne(name, scope);
    } catch (thrown) {
      scope.signal.throwIfAborted();
      scope.log.warn('trash could not be listed', { store: name, why: stowageError(thrown).message });
      return undefined;
    }
  }

  return {
    listStore: async (name, scope) => newestFirst(await listOne(name, scope)),
    list: async (names, scope) => {
      // Ask all stores at once, so that removing a store waits for its listing.
      const listings = await Promise.all(names.map((name) => listIfAnswering(name, scope)));
      return {
        entries: newestFirst(listings.flatMap((entries) => entries ?? [])),
        unanswered: names.filter((_name, index) => listings[index] === undefined),
      };
    },
    find: async (id, isAllowed, scope) => {
      if (!isVolumeId(id)) throw notInTrash(id);
      const matches = (entry: TrashEntry): boolean => entry.volume.id === id;
      const visible = stores.list().filter((view) => isAllowed(view.config.name));
      const answering = visible.filter(isWritable).map((view) => view.config.name);
      const entry = await firstOf(answering.map(async (name) => (await listOne(name, scope)).find(matches)));
      if (entry !== undefined) return entry;
      const down = visible.find((view) => view.store === undefined);
      if (down !== undefined) throw lookupIncomplete(id, down);
      throw notInTrash(id);
    },
  };
}

const newestFirst = (entries: readonly TrashEntry[]): readonly TrashEntry[] =>
  entries.toSorted((a, b) => b.deletedAt - a.deletedAt);

/** The first result, without waiting for stores that do not answer. */
async function firstOf<T>(searches: readonly Promise<T | undefined>[]): Promise<T | undefined> {
  const notFound = Symbol('nothing');
  const found = searches.map(async (search) => (await search) ?? Promise.reject(notFound));
  try {
    return await Promise.any(found);
  } catch (thrown) {
    const failure = (thrown as AggregateError).errors.find((cause) => cause !== notFound);
    if (failure !== undefined) throw failure;
    return undefined;
  }
}

export function createRestore(parts: TrashParts, finder: TrashFinder, steps: DeletionSteps): RestoreVolume {
  const { records, stores, operations, limits } = parts;
  return async (id, requestedName, isAllowed, call) => {
    if (isVolumeId(id)) {
      // A repeated request, after its first answer was lost.
      const restored = records.volumes.byId(id);
      if (
        restored !== undefined &&
        isAllowed(restored.store) &&
        (requestedName === undefined || requestedName === restored.name)
      )
        return restored;
    }
    const { volume } = await finder.find(id, isAllowed, call);
    const name = volumeName(requestedName ?? volume.name);
    return await stores.use(volume.store, async (store, config) => {
      using _ = await operations.lock([nameKey(store.name, name), volumeKey(volume.id)], call.signal);
      const present = records.volumes.byName(store.name, name);
      if (present?.id === volume.id) return present;
      if (present !== undefined) throw nameTaken(present);
      using _place = limits.reserve(config, volume.id, volume.bytes ?? 0n);
      const params = { id: volume.id, name: volume.name, to: name };
      const intent = { kind: 'volume.restore', store: store.name, subject: `${store.name}/${name}`, params };
      return await operations.run(intent, call, (work) => steps['volume.restore'](store, config, params, work));
    });
  };
}

export function createPurge(
  parts: Pick<TrashParts, 'stores' | 'operations' | 'clock'>,
  finder: TrashFinder,
  steps: DeletionSteps,
): TrashPurge {
  const { stores, operations, clock } = parts;

  /** `expired`: purge only if the entry is still expired once the volume is locked, also in a replay after a crash. */
  const purgeEntry = (entry: TrashEntry, call: Call, mode: { readonly expired: boolean }): Promise<void> =>
    stores.use(entry.volume.store, async (store, config) => {
      const { id, name } = entry.volume;
      using _ = await operations.lock([volumeKey(id)], call.signal);
      const params = { id, name, ...(mode.expired ? { expired: true } : { deletedAt: entry.deletedAt }) };
      const intent = { kind: 'trash.purge', store: store.name, subject: `${store.name}/${name}`, params };
      await operations.run(intent, call, (work) => steps['trash.purge'](store, config, params, work));
    });

  /** Logs a failure, so that the other entries are still purged. */
  async function purgeExpired(entry: TrashEntry, scope: Scope): Promise<void> {
    const { id, store } = entry.volume;
    try {
      await purgeEntry(entry, { ...scope, requestId: id }, { expired: true });
    } catch (thrown) {
      const { code, message } = stowageError(thrown);
      if (stopping.signal.aborted || code === 'unavailable') throw thrown;
      scope.log.warn('a trash entry could not be purged', { store, volume: id, why: message });
    }
  }

  /** Can outlive the pass that started it, so that a hung store does not block later passes over other stores. */
  async function expireStore(store: string, { log }: Scope): Promise<void> {
    using limit = clock.deadline(expireDeadlineMs, stopping.signal);
    const scope = { signal: limit.signal, log };
    try {
      const expired = await stores.use(
        store,
        async ({ trash }, { policy }) => (await trash?.listExpired(policy.retention, scope)) ?? [],
      );
      const byId = new Map(expired.map((entry) => [entry.volume.id, entry]));
      await passOf(store)(byId.keys(), scope, async (id, itemScope) => {
        const entry = byId.get(id);
        if (entry !== undefined) await purgeExpired(entry, itemScope);
      });
    } catch (thrown) {
      scope.log.warn('trash could not be emptied', { store, why: stowageError(thrown).message });
    } finally {
      expiring.delete(store);
    }
  }

  const passes = new Map<string, FairPass<VolumeId>>();
  /** Each pass starts with the entries that the previous pass did not reach. */
  function passOf(store: string): FairPass<VolumeId> {
    const pass = passes.get(store) ?? createFairPass(clock, { maxConcurrent: 1, itemTimeoutMs: purgeTimeoutMs });
    passes.set(store, pass);
    return pass;
  }

  /** At most one run per store: a store whose disk hangs is not asked again before it answers. */
  const expiring = new Map<string, Promise<void>>();
  const stopping = new AbortController();
  return {
    stop: () => stopping.abort(),
    purge: async (id, isAllowed, call) =>
      await purgeEntry(await finder.find(id, isAllowed, call), call, { expired: false }),
    purgeExpired: async (scope) => {
      for (const { config } of stores.list().filter(isWritable)) {
        if (!expiring.has(config.name)) expiring.set(config.name, expireStore(config.name, scope));
      }
      await endsWithin(Promise.all(expiring.values()), expireWaitMs, clock);
    },
  };
}

function nameTaken(present: Volume): StowageError {
  const { message } = volumeExists(present);
  return new StowageError(message, {
    code: 'exists',
    reason: 'volume-exists',
    action: 'Restore it under another name: stowage volume restore ID --name NEWNAME',
  });
}

function notInTrash(id: string): StowageError {
  return new StowageError(`there is no volume ${quoted(id)} in the trash`, {
    code: 'not-found',
    reason: 'trash-unknown',
    action: 'List the trash: stowage volume trash list',
  });
}

function trashNotAnswering(store: string): StowageError {
  return new StowageError(`the trash of store '${store}' cannot be read: it does not answer`, {
    code: 'unavailable',
    reason: 'store-silent',
    action: `Look for a disk or server that does not answer: stowage store check ${store}`,
  });
}

function lookupIncomplete(id: string, { config: { name }, problem }: StoreView): StowageError {
  const denial = problem !== undefined && isAccessDenied(problem) ? problem : undefined;
  const { summary, action } = describeUnsearched([{ name, isOpen: false, denial }]);
  return new StowageError(`the trash cannot be searched for ${quoted(id)}: ${summary}`, {
    code: 'unavailable',
    reason: 'trash-lookup-incomplete',
    action: action ?? `Try again when it is back: stowage store check ${name}`,
  });
}
