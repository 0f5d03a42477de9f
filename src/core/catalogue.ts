import type { Scope } from '#base/log.ts';
import { type CatalogueRefresh, type CatalogueRefreshParts, createCatalogueRefresh } from './catalogue-refresh.ts';
import { StowageError } from './errors.ts';
import type { StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import { isVolumeId, partsOfQualified, quoted, storeName, volumeName } from './names.ts';
import type { VolumeQuery, VolumeTotals } from './ports.ts';
import { describeUnsearched, type UnsearchedStore } from './store-errors.ts';
import type { StoreLiveness } from './store-liveness.ts';
import type { Stores } from './stores.ts';
import { unknownVolume } from './volume-errors.ts';

/** The volumes of all stores: our records, refreshed from stores that other hosts can change. */
export interface Catalogue {
  /**
   * Finds a volume by its id, by `store..name`, or by a bare name: the volume in the default store, otherwise the only volume
   * with that name. Searches only `visible` stores; volumes of other stores are reported as not found.
   */
  resolve(ref: string, scope: Scope, visible?: (store: string) => boolean): Promise<Volume>;
  page(
    query: Omit<VolumeQuery, 'stores'> & { readonly stores: readonly string[] | undefined },
    scope: Scope,
  ): Promise<VolumePage>;
  /** Our record of a volume, by id or `store..name`, without asking the store. The record outlives the configuration of its store. */
  findRecorded(handle: string): Volume | undefined;
  /** A page of our records, ordered by store and name, without asking stores. */
  recordedPage(query: VolumeQuery): readonly Volume[];
  /** The record of the volume that a request created on one of these stores, even if it was renamed since. Does not ask the stores. */
  createdByRequest(requestId: string, stores: readonly StoreName[]): Volume | undefined;
  /** Counts our records, without asking the store. */
  totals(store: StoreName): VolumeTotals;
  refresh: CatalogueRefresh['refreshStore'];
}

export interface VolumePage {
  readonly volumes: readonly Volume[];
  /** The stores that did not answer; their volumes come from our records and may be out of date. */
  readonly unanswered: readonly StoreName[];
}

export interface CatalogueParts extends CatalogueRefreshParts {
  readonly stores: () => Pick<Stores, 'list' | 'view' | 'use' | 'defaultName'>;
  readonly liveness: StoreLiveness;
}

export function createCatalogue(parts: CatalogueParts): Catalogue {
  const { records } = parts;
  const refresh = createCatalogueRefresh(parts);
  const lookup = createLookup(parts, refresh);

  return {
    resolve: async (ref, scope, visible = () => true) => {
      if (isVolumeId(ref)) return await lookup.byId(ref, visible, scope);
      const qualified = partsOfQualified(ref);
      if (qualified === undefined) return await lookup.byBareName(ref, visible, scope);
      const { store, name } = qualified;
      if (!visible(store)) throw unknownVolume(`${store}/${name}`);
      return await lookup.byQualifiedName(store, name, scope);
    },
    page: async (query, scope) => {
      const all = parts.stores().list();
      const stores = query.stores ?? all.map((view) => view.config.name);
      const names = stores.map((name) => parts.stores().view(name).config.name);
      // A possibly stale list is better than none.
      const unanswered = await (query.after === undefined
        ? lookup.refreshAll(names, scope)
        : parts.liveness.lateStores(names));
      return { volumes: records.volumes.page({ ...query, stores: names }), unanswered };
    },
    findRecorded: (handle) => {
      if (isVolumeId(handle)) return records.volumes.byId(handle);
      const parts = partsOfQualified(handle);
      return parts && records.volumes.byName(parts.store as StoreName, parts.name as VolumeName);
    },
    recordedPage: (query) => records.volumes.page(query),
    createdByRequest: (requestId, stores) => {
      for (const store of stores) {
        const volume = records.volumes.byRequest(store, requestId);
        if (volume !== undefined) return volume;
      }
      return undefined;
    },
    totals: (store) => records.volumes.totals(store),
    refresh: refresh.refreshStore,
  };
}

type IsVisibleStore = (store: string) => boolean;

interface VolumeLookup {
  byId(id: VolumeId, visible: IsVisibleStore, scope: Scope): Promise<Volume>;
  byQualifiedName(store: string, name: string, scope: Scope): Promise<Volume>;
  byBareName(name: string, visible: IsVisibleStore, scope: Scope): Promise<Volume>;
  /** Refreshes stores that other hosts can change; our records of other stores are up to date. Returns the stores that did not answer. */
  refreshAll(names: readonly StoreName[], scope: Scope): Promise<readonly StoreName[]>;
}

function createLookup({ records, ...parts }: CatalogueParts, refresh: CatalogueRefresh): VolumeLookup {
  const refreshAll: VolumeLookup['refreshAll'] = async (wanted, scope) => {
    const answered = await Promise.all(
      wanted.map((name) => parts.liveness.list(name, scope, (open) => refresh.refreshStore(open, scope))),
    );
    return wanted.filter((_name, index) => !answered[index]);
  };

  /** Like `refreshAll` for a single name, since a store can have very many. */
  const refreshOne = async (store: StoreName, name: VolumeName, scope: Scope): Promise<readonly StoreName[]> =>
    (await parts.liveness.lookUp(store, scope, (open) => refresh.refreshName(open, name, scope))) ? [] : [store];

  /** The unreadable records of these stores, of all names or only of `onlyName`. */
  async function findUnreadable(
    stores: readonly StoreName[],
    scope: Scope,
    onlyName?: VolumeName,
  ): Promise<readonly UnreadableRecord[]> {
    const all: UnreadableRecord[] = [];
    for (const store of stores) {
      const open = parts.stores().view(store).store;
      // Stores that only we change were last read when they were opened, so retry; the others were refreshed just now.
      if (open !== undefined && open.changedByOthers === undefined && refresh.unreadableRecords(open).size > 0)
        await parts.stores().use(store, (now) => refresh.retryUnreadable(now, scope));
      for (const [name, failure] of open === undefined ? [] : refresh.unreadableRecords(open))
        if (onlyName === undefined || name === onlyName) all.push({ store, name, failure });
    }
    return all;
  }

  const visibleStoreNames = (visible: IsVisibleStore): StoreName[] =>
    parts
      .stores()
      .list()
      .map((view) => view.config.name)
      .filter(visible);

  const toUnsearched = (name: StoreName): UnsearchedStore => ({
    name,
    isOpen: parts.stores().view(name).store !== undefined,
    denial: parts.liveness.denialOf(name),
  });

  return {
    refreshAll,
    byId: async (id, visible, scope) => {
      const visibleRecord = (): Volume | undefined => {
        const volume = records.volumes.byId(id);
        return volume !== undefined && visible(volume.store) ? volume : undefined;
      };
      const cached = visibleRecord();
      // Another host may have renamed or deleted the volume.
      if (cached !== undefined && parts.stores().view(cached.store).store?.changedByOthers !== undefined)
        await refreshOne(cached.store, cached.name, scope);
      const refreshed = visibleRecord();
      if (refreshed !== undefined) return refreshed;
      const searched = visibleStoreNames(visible);
      const down = await refreshAll(searched, scope);
      const [unreadableRecord] = await findUnreadable(searched, scope);
      const found = visibleRecord();
      if (found !== undefined) return found;
      // Neither a store that is down nor an unreadable record may make a volume look deleted.
      if (down.length > 0) throw lookupIncomplete(id, down.map(toUnsearched));
      throw unreadableRecord === undefined ? unknownVolume(id) : maybeUnreadable(id, unreadableRecord);
    },
    byQualifiedName: async (store, name, scope) => {
      const { config } = parts.stores().view(storeName(store));
      const validName = volumeName(name);
      const down = await refreshOne(config.name, validName, scope);
      const [unreadableRecord] = await findUnreadable([config.name], scope, validName);
      const found = records.volumes.byName(config.name, validName);
      if (found !== undefined) return found;
      if (down.length > 0) throw lookupIncomplete(`${store}/${name}`, down.map(toUnsearched));
      throw unreadableRecord?.failure ?? unknownVolume(`${store}/${name}`);
    },
    byBareName: async (name, visible, scope) => {
      const validName = volumeName(name);
      const searched = visibleStoreNames(visible);
      // The default store takes precedence, so the other stores need not even answer.
      const defaultStore = searched.find((store) => store === parts.stores().defaultName);
      if (defaultStore !== undefined) await refreshOne(defaultStore, validName, scope);
      const inDefaultStore = defaultStore === undefined ? undefined : records.volumes.byName(defaultStore, validName);
      if (inDefaultStore !== undefined) return inDefaultStore;
      const down = (await Promise.all(searched.map((store) => refreshOne(store, validName, scope)))).flat();
      const [unreadableRecord] = await findUnreadable(searched, scope, validName);
      // Our records may still contain volumes of stores that are no longer configured.
      const found = records.volumes.allByName(validName).filter((volume) => searched.includes(volume.store));
      const [first] = found;
      if (first !== undefined && found.length === 1) return first;
      if (found.length > 1) throw ambiguous(name, found);
      if (down.length > 0) throw lookupIncomplete(name, down.map(toUnsearched));
      throw unreadableRecord?.failure ?? unknownVolume(name);
    },
  };
}

/** A record that exists on its store and cannot be read. */
interface UnreadableRecord {
  readonly store: StoreName;
  readonly name: VolumeName;
  readonly failure: StowageError;
}

function lookupIncomplete(ref: string, stores: readonly UnsearchedStore[]): StowageError {
  const { summary, action } = describeUnsearched(stores);
  return new StowageError(`volume ${quoted(ref)} cannot be looked up: ${summary}`, {
    code: 'unavailable',
    reason: 'volume-lookup-incomplete',
    action: action ?? `Try again when it is back: stowage store check ${stores[0]?.name ?? ''}`,
  });
}

function maybeUnreadable(id: VolumeId, { store, name, failure }: UnreadableRecord): StowageError {
  return new StowageError(
    `volume ${quoted(id)} cannot be looked up: it may be '${store}/${name}', whose record cannot be read`,
    {
      code: 'unavailable',
      reason: 'volume-lookup-incomplete',
      action: `Repair the record and try again. To see what is wrong with it: stowage store orphans ${store}`,
      cause: failure,
    },
  );
}

function ambiguous(name: string, found: readonly Volume[]): StowageError {
  const candidates = found.map((volume) => `${volume.store}/${volume.name}`).join(', ');
  return new StowageError(`${quoted(name)} is in several stores: ${candidates}`, {
    code: 'conflict',
    reason: 'volume-ambiguous',
    action:
      'Specify one as store/name. For Docker and Podman, write store..name, also to create another volume of that name.',
  });
}
