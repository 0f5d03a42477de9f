import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { errorCodes } from './error-codes.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Volume, VolumeId, VolumeName } from './model.ts';
import type { Records, Store } from './ports.ts';
import { namesOf } from './store-facets.ts';
import type { Stores } from './stores.ts';

const maxConcurrentReads = 16;

export interface CatalogueRefreshParts {
  readonly records: Records;
  readonly stores: () => Pick<Stores, 'list'>;
  readonly instance: string;
}

export interface CatalogueRefresh {
  /**
   * Updates our records of a store from the store itself, for volumes that this instance made or that are shared. `thorough`: also re-reads
   * volumes that are already recorded, since a power cut may have lost our newest records.
   */
  refreshStore(store: Store, scope: Scope, thorough?: boolean): Promise<void>;
  /** Updates the record of one name from the store. */
  refreshName(store: Store, name: VolumeName, scope: Scope): Promise<void>;
  /** The names whose records could not be read at the last attempt, with the error. Any volume may have such a name. */
  unreadableRecords(store: Store): ReadonlyMap<VolumeName, StowageError>;
  /** Retries the unreadable records. */
  retryUnreadable(store: Store, scope: Scope): Promise<void>;
}

export function createCatalogueRefresh({ records, stores, instance }: CatalogueRefreshParts): CatalogueRefresh {
  /** Two stores can share a directory, one of them read-only. The volume stays with the store that it is recorded for. */
  const belongsToOtherStore = (volume: Volume): boolean => {
    const known = records.volumes.byId(volume.id)?.store;
    return known !== undefined && known !== volume.store && isConfigured(stores(), known);
  };

  /** Replaces the record under the name: another host may have given the name to another volume. */
  function replaceRecord(store: Store, found: Volume): void {
    const known = records.volumes.byName(store.name, found.name);
    records.transaction(() => {
      if (known !== undefined && known.id !== found.id) records.volumes.remove(known.id);
      records.volumes.put(found);
    });
  }

  function recordIfOurs(store: Store, found: Volume): void {
    if (!belongsToOtherStore(found) && (store.changedByOthers !== undefined || found.instance === instance))
      replaceRecord(store, found);
  }

  /** Per store: the records that could not be read at the last attempt, with the error. */
  const failures = new WeakMap<Store, Map<VolumeName, StowageError>>();
  const failuresOf = (store: Store): Map<VolumeName, StowageError> => {
    const known = failures.get(store) ?? new Map<VolumeName, StowageError>();
    failures.set(store, known);
    return known;
  };

  /** An unreadable record is reported as an orphan. It must not fail the whole listing. */
  async function readVolume(store: Store, name: VolumeName, scope: Scope): Promise<Volume | 'unreadable' | undefined> {
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
        scope.log.warn('an unreadable record is skipped', { store: store.name, volume: name, why: message, action });
      failed.set(name, failure);
      return 'unreadable';
    }
  }

  /** Per store that others can change: the change mark of each volume at the last refresh. Empty after a restart, so everything is read. */
  const lastRevisions = new WeakMap<Store, ReadonlyMap<VolumeName, string>>();

  /** The names on the store; true: unchanged since the last refresh, so our record is up to date. */
  async function listNames(store: Store, scope: Scope): Promise<ReadonlyMap<VolumeName, boolean>> {
    const previousRevisions = lastRevisions.get(store);
    const revisions = await store.changedByOthers?.revisions?.(scope);
    if (revisions === undefined) return new Map((await namesOf(store, scope)).map((name) => [name, true]));
    lastRevisions.set(store, revisions);
    return new Map(Array.from(revisions, ([name, mark]) => [name, previousRevisions?.get(name) === mark]));
  }

  /** Listings of this store include the names of unreadable records. */
  const listsUnreadable = (store: Store): boolean =>
    store.names !== undefined || store.changedByOthers?.revisions !== undefined;

  /** The recorded names that the store no longer has. `unlisted`: recorded names that the listing did not return. */
  async function findRemoved(store: Store, unlisted: ReadonlyMap<string, VolumeId>, scope: Scope) {
    if (listsUnreadable(store)) return unlisted;
    const removedNames = new Map<string, VolumeId>();
    await eachBounded(unlisted, maxConcurrentReads, async ([name, id]) => {
      if ((await readVolume(store, name as VolumeName, scope)) === undefined) removedNames.set(name, id);
    });
    return removedNames;
  }

  const refreshStore: CatalogueRefresh['refreshStore'] = async (store, scope, thorough = false) => {
    const recorded = new Map(records.volumes.names(store.name).map((row) => [row.name as string, row.id]));
    const listed = await listNames(store, scope);
    const failed = failuresOf(store);
    if (listsUnreadable(store)) for (const name of failed.keys()) if (!listed.has(name)) failed.delete(name);
    try {
      await eachBounded(listed, maxConcurrentReads, async ([name, isSame]) => {
        // Restored permissions do not change the mark, so always retry unreadable records.
        if (recorded.delete(name) && isSame && !thorough && !failed.has(name)) return;
        const found = await readVolume(store, name, scope);
        scope.signal.throwIfAborted();
        // Keep our record of an unreadable volume: the volume still exists.
        if (found !== undefined && found !== 'unreadable') recordIfOurs(store, found);
      });
    } catch (cause) {
      // Read everything at the next refresh, since this one did not finish.
      lastRevisions.delete(store);
      throw cause;
    }
    const removed = await findRemoved(store, recorded, scope);
    scope.signal.throwIfAborted();
    // The store answered, so its listing is authoritative.
    records.transaction(() => {
      for (const [name, id] of removed) {
        // If the record has another name by now, the volume was renamed and is already up to date.
        if (records.volumes.byId(id)?.name === name) records.volumes.remove(id);
      }
    });
  };

  return {
    refreshStore,
    refreshName: async (store, name, scope) => {
      const found = await readVolume(store, name, scope);
      if (found === 'unreadable' || (found !== undefined && belongsToOtherStore(found))) return;
      if (found !== undefined) return replaceRecord(store, found);
      const known = records.volumes.byName(store.name, name);
      if (known !== undefined) records.volumes.remove(known.id);
    },
    unreadableRecords: failuresOf,
    retryUnreadable: (store, scope) =>
      eachBounded([...failuresOf(store).keys()], maxConcurrentReads, async (name) => {
        const found = await readVolume(store, name, scope);
        if (found !== undefined && found !== 'unreadable') recordIfOurs(store, found);
      }),
  };
}

const isConfigured = (stores: Pick<Stores, 'list'>, name: string): boolean =>
  stores.list().some((view) => view.config.name === name);
