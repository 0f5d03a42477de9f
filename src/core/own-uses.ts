import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/patience.ts';
import { stowageError } from './errors.ts';
import type { NodeName, Source, StoreName, User, Volume, VolumeId, VolumeName, VolumeRef } from './model.ts';
import type { Records, Store } from './ports.ts';
import type { Stores } from './stores.ts';
import { usersOnRecord } from './users.ts';

/**
 * What this host says on the stores that it uses. Written before a volume is mounted, so that no other host destroys it;
 * taken back when nothing here uses it any more. A store that does not answer then is told later, also after a restart.
 */
export interface OwnUses {
  /** Somebody is about to use it, and counts from now on; until disposed of, when that is on record or came to nothing. */
  coming(id: VolumeId, by: User): Disposable;
  /** Before the mount. Throws when it cannot be said. */
  begin(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** After an unmount: says what is left. Never throws. */
  settle(id: VolumeId, scope: Scope): Promise<void>;
  /** Before the volume goes away: nothing here uses it. */
  end(volume: VolumeRef, store: Store, scope: Scope): Promise<void>;
  /** Every half minute: says it again, since a silent host is taken for gone, and what could not be said before. */
  renew(scope: Scope): Promise<void>;
}

export interface OwnUsesParts {
  readonly records: Records;
  readonly stores: () => Stores;
  readonly clock: Clock;
  readonly log: Log;
  readonly instance: string;
  readonly node: NodeName;
}

/** Other hosts can use it too. */
export const isShared = (source: Source): boolean => !('node' in source);

/** Not yet said on its store: that this host no longer uses it, or by whom it still does. */
interface Unsaid {
  readonly id: VolumeId;
  readonly name: VolumeName;
  readonly store: StoreName;
}

const settingKey = 'uses.unsaid';
/** An unmount does not wait longer for a server that is gone. */
const settleMs = 3_000;
const renewMs = 20_000;
const inParallel = 8;
const unending = new AbortController().signal;

export function createOwnUses({ records, stores, clock, log, instance, node }: OwnUsesParts): OwnUses {
  const { settings, mounts, references } = records;
  const unsaid = (): readonly Unsaid[] => JSON.parse(settings.get(settingKey) ?? '[]');
  const remember = (what: Unsaid): void => {
    const others = unsaid().filter(({ id }) => id !== what.id);
    settings.set(settingKey, JSON.stringify([...others, what]));
  };
  const forget = (id: VolumeId): void => {
    const all = unsaid();
    if (all.some((one) => one.id === id)) settings.set(settingKey, JSON.stringify(all.filter((one) => one.id !== id)));
  };
  const useBy = (users: readonly User[]) => ({
    ...{ host: instance, node },
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

  async function say(ref: VolumeRef, store: Store, scope: Scope): Promise<void> {
    using _ = await turns.hold([ref.id], scope.signal);
    const users = usersOf(ref.id);
    if (users.length > 0) await store.uses?.put(ref, useBy(users), scope);
    else await store.uses?.remove(ref.id, instance, scope);
    forget(ref.id);
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
      .some((view) => view.shared && view.config.name === store);
  };

  async function sayTo(what: Unsaid, scope: Scope): Promise<void> {
    await stores().use(what.store, (store) => say(what, store, scope));
  }

  function complain(what: Unsaid, thrown: unknown): void {
    const why = stowageError(thrown).message;
    log.info('a store could not be told who uses its volume; it is told later', { volume: what.id, why });
  }

  return {
    coming: (id, by) => {
      const all = coming.get(id) ?? new Set();
      coming.set(id, all.add(by));
      return {
        [Symbol.dispose]: () => {
          all.delete(by);
          if (all.size === 0) coming.delete(id);
        },
      };
    },
    begin: async (volume, store, scope) => {
      if (store.uses === undefined) return;
      // Remembered first: after a crash it is not known whether it was said.
      remember({ id: volume.id, name: volume.name, store: volume.store });
      using _ = await turns.hold([volume.id], scope.signal);
      await store.uses.put(volume, useBy(usersOf(volume.id)), scope);
    },
    settle: async (id, scope) => {
      const volume = records.volumes.byId(id);
      const known = unsaid().find((one) => one.id === id);
      const what = volume === undefined ? known : { id, name: volume.name, store: volume.store };
      if (what === undefined) return;
      remember(what);
      // It goes on after that: a call to a server has its own deadline.
      const saying = sayTo(what, { ...scope, signal: unending }).catch((thrown: unknown) => complain(what, thrown));
      await endsWithin(saying, settleMs, clock);
    },
    end: async (ref, store, scope) => {
      if (store.uses === undefined || !unsaid().some(({ id }) => id === ref.id)) return;
      await say(ref, store, scope);
    },
    renew: async (scope) => {
      const shared = mounts.list().filter(({ source }) => isShared(source));
      const ids = new Set([...shared, ...references.list().filter(isOnShared)].map(({ volumeId }) => volumeId));
      const used = [...ids].flatMap((id) => records.volumes.byId(id) ?? []);
      const all = new Map([...used, ...unsaid()].map((one) => [one.id, one]));
      using limit = clock.deadline(renewMs, scope.signal);
      const within = { ...scope, signal: limit.signal };
      await eachBounded([...all.values()], inParallel, async ({ id, name, store }) => {
        try {
          // Only here is that certain: at the start, stores are not there yet.
          if (isConfigured(store)) await sayTo({ id, name, store }, within);
          else forget(id);
        } catch (thrown) {
          complain({ id, name, store }, thrown);
        }
      });
    },
  };
}
