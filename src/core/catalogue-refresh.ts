import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import { errorCodes, type StowageError, stowageError } from './errors.ts';
import type { Volume, VolumeId, VolumeName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { namesOf } from './store-facets.ts';
import type { StoreLiveness } from './store-liveness.ts';
import type { Stores } from './stores.ts';

const readsAtOnce = 16;

export interface CatalogueParts {
  readonly records: Records;
  readonly stores: () => Stores;
  readonly liveness: StoreLiveness;
  readonly instance: string;
}

export interface CatalogueRefresh {
  all: Catalogue['refresh'];
  /** What the store says of one name. */
  one(store: Store, name: VolumeName, scope: Scope): Promise<void>;
  /** Names of which it is known that they are there, and no more: any volume can be behind them. As they were last read. */
  unreadable(store: Store): ReadonlyMap<VolumeName, StowageError>;
  /** Reads them again. */
  readAgain(store: Store, scope: Scope): Promise<void>;
}

export function createCatalogueRefresh({ records, stores, instance }: CatalogueParts): CatalogueRefresh {
  /** Two stores can show the same directory, one of them read-only: the volume stays where it is on record. */
  const isElsewhere = (volume: Volume): boolean => {
    const known = records.volumes.byId(volume.id)?.store;
    return known !== undefined && known !== volume.store && isConfigured(stores(), known);
  };

  /** Another host may have given the name to another volume. */
  function take(store: Store, found: Volume): void {
    const known = records.volumes.byName(store.name, found.name);
    records.transaction(() => {
      if (known !== undefined && known.id !== found.id) records.volumes.remove(known.id);
      records.volumes.put(found);
    });
  }

  function takeOurs(store: Store, found: Volume): void {
    if (!isElsewhere(found) && (store.changedByOthers !== undefined || found.instance === instance)) take(store, found);
  }

  /** Of each store: what kept records of it from being read, when that was last tried. */
  const failures = new WeakMap<Store, Map<VolumeName, StowageError>>();
  const failuresOf = (store: Store): Map<VolumeName, StowageError> => {
    const known = failures.get(store) ?? new Map<VolumeName, StowageError>();
    failures.set(store, known);
    return known;
  };

  /** One record that cannot be read is an orphan, which is reported as such; it must not hide all the others. */
  async function read(store: Store, name: VolumeName, scope: Scope): Promise<Volume | 'unreadable' | undefined> {
    const failed = failuresOf(store);
    try {
      const found = await store.get(name, scope);
      failed.delete(name);
      return found?.volume;
    } catch (thrown) {
      const failure = stowageError(thrown);
      const { code, message, action } = failure;
      if (scope.signal.aborted || code === 'internal' || errorCodes[code].retry) throw thrown;
      if (failed.get(name)?.message !== message)
        scope.log.warn('a record is left out', { store: store.name, volume: name, why: message, action });
      failed.set(name, failure);
      return 'unreadable';
    }
  }

  /** What was read of each volume that others can change, by store. Empty after a start: then all of it is read. */
  const marks = new WeakMap<Store, ReadonlyMap<VolumeName, string>>();

  /** Those that are there, each with whether our record of it is as good as the store's. */
  async function present(store: Store, scope: Scope): Promise<ReadonlyMap<VolumeName, boolean>> {
    const before = marks.get(store);
    const now = await store.changedByOthers?.marks?.(scope);
    if (now === undefined) return new Map((await namesOf(store, scope)).map((name) => [name, true]));
    marks.set(store, now);
    return new Map(Array.from(now, ([name, mark]) => [name, before?.get(name) === mark]));
  }

  /** Whether names of records that cannot be read are listed too. */
  const listsUnreadable = (store: Store): boolean =>
    store.names !== undefined || store.changedByOthers?.marks !== undefined;

  /** Of the names on record that were not listed, those that are gone. */
  async function gone(store: Store, unlisted: ReadonlyMap<string, VolumeId>, scope: Scope) {
    if (listsUnreadable(store)) return unlisted;
    const found = new Map<string, VolumeId>();
    await eachBounded(unlisted, readsAtOnce, async ([name, id]) => {
      if ((await read(store, name as VolumeName, scope)) === undefined) found.set(name, id);
    });
    return found;
  }

  const all: CatalogueRefresh['all'] = async (store, scope, thorough = false) => {
    const recorded = new Map(records.volumes.names(store.name).map((row) => [row.name as string, row.id]));
    const there = await present(store, scope);
    const failed = failuresOf(store);
    if (listsUnreadable(store)) for (const name of failed.keys()) if (!there.has(name)) failed.delete(name);
    try {
      await eachBounded(there, readsAtOnce, async ([name, isSame]) => {
        // Rights come back without a trace on the record: what could not be read is read again.
        if (recorded.delete(name) && isSame && !thorough && !failed.has(name)) return;
        const found = await read(store, name, scope);
        scope.signal.throwIfAborted();
        // What is on record of one that cannot be read stays: it is there.
        if (found !== undefined && found !== 'unreadable') takeOurs(store, found);
      });
    } catch (cause) {
      // What was not read must be read next time.
      marks.delete(store);
      throw cause;
    }
    const removed = await gone(store, recorded, scope);
    scope.signal.throwIfAborted();
    // The store answered, so that is the truth.
    records.transaction(() => {
      for (const [name, id] of removed) {
        // Under another name now: then it was renamed, and is on record already.
        if (records.volumes.byId(id)?.name === name) records.volumes.remove(id);
      }
    });
  };

  return {
    all,
    one: async (store, name, scope) => {
      const found = await read(store, name, scope);
      if (found === 'unreadable' || (found !== undefined && isElsewhere(found))) return;
      if (found !== undefined) return take(store, found);
      const known = records.volumes.byName(store.name, name);
      if (known !== undefined) records.volumes.remove(known.id);
    },
    unreadable: failuresOf,
    readAgain: (store, scope) =>
      eachBounded([...failuresOf(store).keys()], readsAtOnce, async (name) => {
        const found = await read(store, name, scope);
        if (found !== undefined && found !== 'unreadable') takeOurs(store, found);
      }),
  };
}

const isConfigured = (stores: Stores, name: string): boolean => stores.list().some((view) => view.config.name === name);
