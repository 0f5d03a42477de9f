import type { Clock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import { createFairPass, type FairPass } from './fair-pass.ts';
import type { NodeName, StoreName, User, Volume, VolumeId, VolumeName, VolumeRef } from './model.ts';
import { isShared } from './placement.ts';
import type { Records, Store } from './ports.ts';
import type { StoreView } from './store-view.ts';
import type { Stores } from './stores.ts';
import { usersOnRecord } from './volume-users.ts';

/**
 * Publishes this host's use records on the stores. A record is written before a volume is mounted, so that no other host destroys the
 * volume, and removed when nothing on this host uses it. If a store does not answer, the update is retried, even after a restart.
 */
export interface UsePublisher {
  /** Counts a user whose mount is in progress. Dispose when the mount is recorded or has failed. */
  expectUser(id: VolumeId, user: User): Disposable;
  /** Publishes the use before a mount, or throws. `writer`: also makes this host the single writer until nothing here uses the volume. */
  publish(volume: Volume, store: Store, scope: Scope, as?: 'user' | 'writer'): Promise<void>;
  /** Updates the record after an unmount. Never throws. */
  update(id: VolumeId, scope: Scope): Promise<void>;
  /** Removes an outdated record before the volume is deleted or renamed, when nothing here uses it. */
  removeIfUnused(volume: VolumeRef, store: Store, scope: Scope): Promise<void>;
  /** Called every half minute: renews all records, since other hosts consider a silent host gone, and retries failed updates. */
  renew(scope: Scope): Promise<void>;
}

export interface UsePublisherParts {
  readonly records: Records;
  readonly clients: Pick<Clients, 'isNodeLocal'>;
  readonly stores: () => Pick<Stores, 'list' | 'use'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly instance: string;
  readonly node: NodeName;
}

/** A volume whose store may have a use record of this host. */
interface PublishedUse {
  readonly id: VolumeId;
  readonly name: VolumeName;
  readonly store: StoreName;
}

/** The key is historical: the list used to contain only records that were not published yet. */
const settingKey = 'uses.unsaid';
const noUsers = JSON.stringify([]);
/** The longest that an unmount waits for the store. */
const updateWaitMs = 3_000;
const renewTimeoutMs = 20_000;
const maxConcurrentRenewals = 8;
const unending = new AbortController().signal;

export function createUsePublisher({
  records,
  clients,
  stores,
  clock,
  log,
  instance,
  node,
}: UsePublisherParts): UsePublisher {
  const { settings, mounts, references } = records;
  const uses = createPublishedUses(settings);
  const expected = createExpectedUsers();

  /** Serializes updates per volume: an update that timed out may still be in progress and must not overtake a later one. */
  const updateLocks = createKeyedLock();

  /** The current users. Call it only while holding the volume's turn. */
  const usersOf = (id: VolumeId): readonly User[] => {
    const mounted = [...mounts.byVolume(id), ...expected.usersOf(id).map((user) => ({ user }))];
    return usersOnRecord(mounted, references.byVolume(id), node);
  };

  /** `force`: publish even if unchanged, since others may have removed the record. */
  async function publishUse(ref: VolumeRef, store: Store, scope: Scope, force: boolean): Promise<void> {
    using _ = await updateLocks.hold([ref.id], scope.signal);
    const users = usersOf(ref.id).map(({ kind, name }) => ({ kind, name }));
    const usersJson = JSON.stringify(users);
    // Engines report every change of a container, and most of them do not change the users.
    if (!force && uses.lastPublished(ref.id) === usersJson) return;
    uses.remember({ id: ref.id, name: ref.name, store: store.name });
    if (users.length > 0) await store.uses?.put(ref, { host: instance, node, users }, scope);
    else await store.uses?.remove(ref.id, instance, scope);
    uses.setLastPublished(ref.id, usersJson);
  }

  /** The view of the store. Undefined: it is not configured. */
  const viewOf = (name: StoreName | undefined): StoreView | undefined =>
    stores()
      .list()
      .find(({ config }) => config.name === name);

  /** For stopped containers, which have no mount that would show where the volume is. */
  const isOnSharedStore = ({ volumeId }: { readonly volumeId: VolumeId }): boolean => {
    const view = viewOf(records.volumes.byId(volumeId)?.store);
    return view !== undefined && isShared(view.placement);
  };

  async function publishTo(use: PublishedUse, scope: Scope, force: boolean): Promise<void> {
    await stores().use(use.store, (store) => publishUse(use, store, scope, force));
  }

  function logFailure(use: PublishedUse, thrown: unknown): void {
    const why = stowageError(thrown).message;
    log.info('a use record could not be updated; it is retried later', { volume: use.id, why });
  }

  /** One pass per store, so that a store that does not answer does not delay the others. */
  const passes = new Map<StoreName, FairPass<VolumeId>>();

  async function renewStore(store: StoreName, volumes: readonly PublishedUse[], scope: Scope): Promise<void> {
    const pass =
      passes.get(store) ??
      createFairPass(clock, { maxConcurrent: maxConcurrentRenewals, itemTimeoutMs: renewTimeoutMs });
    passes.set(store, pass);
    const byId = new Map(volumes.map((one) => [one.id, one]));
    using limit = clock.deadline(renewTimeoutMs, scope.signal);
    await pass(byId.keys(), { ...scope, signal: limit.signal }, async (id, itemScope) => {
      const use = byId.get(id);
      if (use !== undefined) await publishTo(use, itemScope, true).catch((thrown: unknown) => logFailure(use, thrown));
    });
  }

  return {
    expectUser: expected.add,
    publish: async (volume, store, scope, as = 'user') => {
      if (store.uses === undefined) return;
      if (as === 'writer') {
        // Take the writer lease first, so that a rejected mount publishes nothing. Both are removed together, even after a crash.
        uses.remember(volume);
        await store.uses.takeWriter(volume, instance, scope);
      }
      // Publish even if unchanged, since others may have removed the record.
      await publishUse(volume, store, scope, true);
    },
    update: async (id, scope) => {
      const volume = records.volumes.byId(id);
      const use = volume ?? uses.all().get(id);
      if (use === undefined) return;
      // An older version may have published a record without adding it to the list.
      if (!uses.all().has(id)) uses.remember(use);
      // The update continues in the background after `updateWaitMs`; calls to a server have their own deadlines.
      const updating = publishTo(use, { ...scope, signal: unending }, false).catch((thrown: unknown) =>
        logFailure(use, thrown),
      );
      await endsWithin(updating, updateWaitMs, clock);
    },
    removeIfUnused: async (ref, store, scope) => {
      if (store.uses === undefined || !uses.all().has(ref.id)) return;
      await publishUse(ref, store, scope, false);
    },
    renew: async (scope) => {
      const shared = mounts.list().filter(({ source }) => !clients.isNodeLocal(source));
      const ids = new Set([...shared, ...references.list().filter(isOnSharedStore)].map(({ volumeId }) => volumeId));
      const used = [...ids].flatMap((id) => records.volumes.byId(id) ?? []);
      const isOver = (id: VolumeId): boolean => uses.lastPublished(id) === noUsers && usersOf(id).length === 0;
      uses.forget(new Set([...uses.all().keys()].filter(isOver)));
      const usesById = new Map([...used, ...uses.all().values()].map((one) => [one.id, one]));
      const isGone = ({ store }: PublishedUse): boolean => viewOf(store) === undefined;
      // Forget volumes of removed stores only here: during the start, stores are not configured yet.
      uses.forget(new Set([...usesById.values()].filter(isGone).map(({ id }) => id)));
      const byStore = Map.groupBy(
        [...usesById.values()].filter((one) => !isGone(one)),
        ({ store }) => store,
      );
      await Promise.all(Array.from(byStore, ([store, volumes]) => renewStore(store, volumes, scope)));
    },
  };
}

/** The users whose mounts are in progress. */
function createExpectedUsers(): { add: UsePublisher['expectUser']; usersOf(id: VolumeId): readonly User[] } {
  const expected = new Map<VolumeId, Set<User>>();
  return {
    add: (id, user) => {
      const users = expected.get(id) ?? new Set();
      expected.set(id, users.add(user));
      return {
        [Symbol.dispose]: () => {
          users.delete(user);
          if (users.size === 0) expected.delete(id);
        },
      };
    },
    usersOf: (id) => [...(expected.get(id) ?? [])],
  };
}

interface PublishedUses {
  /** The persistent list of volumes whose stores may have a use record of this host. */
  all(): ReadonlyMap<VolumeId, PublishedUse>;
  /**
   * Adds the volume to the list. Durable when it returns. Call it before publishing: after a crash or power cut, the list leads to records
   * that nothing uses any more. Writing the list waits for the disk, so entries stay until `renew`, however often the volume is mounted.
   */
  remember(use: PublishedUse): void;
  forget(ids: ReadonlySet<VolumeId>): void;
  /** The users, as JSON, that this process last published successfully. */
  lastPublished(id: VolumeId): string | undefined;
  setLastPublished(id: VolumeId, usersJson: string): void;
}

function createPublishedUses(settings: Records['settings']): PublishedUses {
  const published = new Map<VolumeId, string>();
  let parsed: { readonly text: string; readonly all: ReadonlyMap<VolumeId, PublishedUse> } | undefined;

  function all(): ReadonlyMap<VolumeId, PublishedUse> {
    const text = settings.get(settingKey) ?? noUsers;
    if (parsed?.text !== text)
      parsed = { text, all: new Map((JSON.parse(text) as readonly PublishedUse[]).map((one) => [one.id, one])) };
    return parsed.all;
  }

  const save = (uses: readonly PublishedUse[]): void => settings.set(settingKey, JSON.stringify(uses));

  return {
    all,
    remember: ({ id, name, store }) => {
      published.delete(id);
      if (!all().has(id)) save([...all().values(), { id, name, store }]);
    },
    forget: (ids) => {
      for (const id of ids) published.delete(id);
      const remaining = [...all().values()].filter(({ id }) => !ids.has(id));
      if (remaining.length < all().size) save(remaining);
    },
    lastPublished: (id) => published.get(id),
    setLastPublished: (id, usersJson) => void published.set(id, usersJson),
  };
}
