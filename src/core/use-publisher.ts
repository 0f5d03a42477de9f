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
import type { Stores } from './stores.ts';
import { usersOnRecord } from './volume-users.ts';

/**
 * What this host says on the stores that it uses. Written before a volume is mounted, so that no other host destroys it;
 * taken back when nothing here uses it any more. A store that does not answer then is told later, also after a restart.
 */
export interface UsePublisher {
  /** Somebody is about to use it, and counts from now on; until disposed of, when that is on record or came to nothing. */
  expectUser(id: VolumeId, by: User): Disposable;
  /** Before the mount. Throws when it cannot be said. As writer: no other host is, until nothing here uses it any more. */
  publish(volume: Volume, store: Store, scope: Scope, as?: 'user' | 'writer'): Promise<void>;
  /** After an unmount: says what is left. Never throws. */
  update(id: VolumeId, scope: Scope): Promise<void>;
  /** Before the volume goes away: nothing here uses it. */
  end(volume: VolumeRef, store: Store, scope: Scope): Promise<void>;
  /** Every half minute: says it again, since a silent host is taken for gone, and what could not be said before. */
  renew(scope: Scope): Promise<void>;
}

export interface UsePublisherParts {
  readonly records: Records;
  readonly clients: Pick<Clients, 'isNodeLocal'>;
  readonly stores: () => Stores;
  readonly clock: Clock;
  readonly log: Log;
  readonly instance: string;
  readonly node: NodeName;
}

/** A volume on whose store there may be a record of this host. */
interface PublishedUse {
  readonly id: VolumeId;
  readonly name: VolumeName;
  readonly store: StoreName;
}

/** Named after what was in it once: only what was not said yet. */
const settingKey = 'uses.unsaid';
const nobody = JSON.stringify([]);
/** An unmount does not wait longer for a server that is gone. */
const settleMs = 3_000;
const renewMs = 20_000;
const inParallel = 8;
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
  const listed = createList(settings);
  /** What this process last said of a volume and knows to be on its store: its users, as JSON. */
  const said = new Map<VolumeId, string>();
  /**
   * Before anything is said: whatever comes, a power cut too, a record that nothing here stands for is found by this list and
   * taken back. To write it down waits for the disk, so what is there stays until `renew`, however often the volume is mounted.
   */
  const remember = ({ id, name, store }: PublishedUse): void => {
    said.delete(id);
    if (!listed.all().has(id)) listed.set([...listed.all().values(), { id, name, store }]);
  };
  const forget = (ids: ReadonlySet<VolumeId>): void => {
    for (const id of ids) said.delete(id);
    const left = [...listed.all().values()].filter(({ id }) => !ids.has(id));
    if (left.length < listed.all().size) listed.set(left);
  };
  const useBy = (users: readonly User[]) => ({
    host: instance,
    node,
    users: users.map(({ kind, name }) => ({ kind, name })),
  });

  /** One after the other for a volume: what was given up on may still be said, and must not come after what follows. */
  const turns = createKeyedLock();

  const coming = new Map<VolumeId, Set<User>>();
  /** As it is at this moment: to be asked for only when it is one's turn to say it. */
  const usersOf = (id: VolumeId): readonly User[] => {
    const mounted = [...mounts.of(id), ...Array.from(coming.get(id) ?? [], (user) => ({ user }))];
    return usersOnRecord(mounted, references.of(id), node);
  };

  const wordsFor = (users: readonly User[]): string => JSON.stringify(useBy(users).users);

  /** Again: also what it was told before, since others may have taken it away. */
  async function say(ref: VolumeRef, store: Store, scope: Scope, again: boolean): Promise<void> {
    using _ = await turns.hold([ref.id], scope.signal);
    const users = usersOf(ref.id);
    const words = wordsFor(users);
    // Containers come, start, stop and go: for each of that an engine tells, and mostly it is the same as before.
    if (!again && said.get(ref.id) === words) return;
    remember({ id: ref.id, name: ref.name, store: store.name });
    if (users.length > 0) await store.uses?.put(ref, useBy(users), scope);
    else await store.uses?.remove(ref.id, instance, scope);
    said.set(ref.id, words);
  }

  const isConfigured = (name: StoreName): boolean =>
    stores()
      .list()
      .some(({ config }) => config.name === name);

  /** What is stopped has no mount to tell by. */
  const isOnShared = ({ volumeId }: { readonly volumeId: VolumeId }): boolean => {
    const store = records.volumes.byId(volumeId)?.store;
    return stores()
      .list()
      .some(({ placement, config }) => isShared(placement) && config.name === store);
  };

  async function sayTo(what: PublishedUse, scope: Scope, again: boolean): Promise<void> {
    await stores().use(what.store, (store) => say(what, store, scope, again));
  }

  function complain(what: PublishedUse, thrown: unknown): void {
    const why = stowageError(thrown).message;
    log.info('a store could not be told who uses its volume; it is told later', { volume: what.id, why });
  }

  /** Each store by itself, so that one that does not answer starves no other. */
  const passes = new Map<StoreName, FairPass<VolumeId>>();

  async function renewOn(store: StoreName, volumes: readonly PublishedUse[], scope: Scope): Promise<void> {
    const pass = passes.get(store) ?? createFairPass(clock, { inParallel, itemMs: renewMs });
    passes.set(store, pass);
    const byId = new Map(volumes.map((one) => [one.id, one]));
    using limit = clock.deadline(renewMs, scope.signal);
    await pass(byId.keys(), { ...scope, signal: limit.signal }, async (id, own) => {
      const one = byId.get(id);
      if (one !== undefined) await sayTo(one, own, true).catch((thrown: unknown) => complain(one, thrown));
    });
  }

  return {
    expectUser: (id, by) => {
      const all = coming.get(id) ?? new Set();
      coming.set(id, all.add(by));
      return {
        [Symbol.dispose]: () => {
          all.delete(by);
          if (all.size === 0) coming.delete(id);
        },
      };
    },
    publish: async (volume, store, scope, as = 'user') => {
      if (store.uses === undefined) return;
      if (as === 'writer') {
        // First, so that who is refused has said nothing. Both are taken back together, also after a crash.
        remember(volume);
        await store.uses.takeWriter(volume, instance, scope);
      }
      // Whatever it was told before: others may have taken it away.
      await say(volume, store, scope, true);
    },
    update: async (id, scope) => {
      const volume = records.volumes.byId(id);
      const what = volume ?? listed.all().get(id);
      if (what === undefined) return;
      // Of what is not there, an earlier program may have said it.
      if (!listed.all().has(id)) remember(what);
      // It goes on after that: a call to a server has its own deadline.
      const saying = sayTo(what, { ...scope, signal: unending }, false).catch((thrown: unknown) =>
        complain(what, thrown),
      );
      await endsWithin(saying, settleMs, clock);
    },
    end: async (ref, store, scope) => {
      if (store.uses === undefined || !listed.all().has(ref.id)) return;
      await say(ref, store, scope, false);
    },
    renew: async (scope) => {
      const shared = mounts.list().filter(({ source }) => !clients.isNodeLocal(source));
      const ids = new Set([...shared, ...references.list().filter(isOnShared)].map(({ volumeId }) => volumeId));
      const used = [...ids].flatMap((id) => records.volumes.byId(id) ?? []);
      const isOver = (id: VolumeId): boolean => said.get(id) === nobody && usersOf(id).length === 0;
      forget(new Set([...listed.all().keys()].filter(isOver)));
      const all = new Map([...used, ...listed.all().values()].map((one) => [one.id, one]));
      const isGone = ({ store }: PublishedUse): boolean => !isConfigured(store);
      // Only here is that certain: at the start, stores are not there yet.
      forget(new Set([...all.values()].filter(isGone).map(({ id }) => id)));
      const byStore = Map.groupBy(
        [...all.values()].filter((one) => !isGone(one)),
        ({ store }) => store,
      );
      await Promise.all(Array.from(byStore, ([store, volumes]) => renewOn(store, volumes, scope)));
    },
  };
}

interface PublishedUseList {
  all(): ReadonlyMap<VolumeId, PublishedUse>;
  /** On disk when it returns. */
  set(all: readonly PublishedUse[]): void;
}

function createList(settings: Records['settings']): PublishedUseList {
  let last: { readonly text: string; readonly all: ReadonlyMap<VolumeId, PublishedUse> } | undefined;
  return {
    all: () => {
      const text = settings.get(settingKey) ?? nobody;
      if (last?.text !== text)
        last = { text, all: new Map((JSON.parse(text) as readonly PublishedUse[]).map((one) => [one.id, one])) };
      return last.all;
    },
    set: (all) => settings.set(settingKey, JSON.stringify(all)),
  };
}
