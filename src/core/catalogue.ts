import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { errorCodes, StowageError, stowageError } from './errors.ts';
import type { StoreName, Volume, VolumeId, VolumeName } from './model.ts';
import { isVolumeId, partsOfQualified, quoted, storeName, volumeName } from './names.ts';
import type { Records, Store, VolumeQuery } from './ports.ts';
import type { StoreAnswers } from './store-answers.ts';
import type { Stores } from './stores.ts';

/** Which volumes there are: our records of them, refreshed from stores that others can change. */
export interface Catalogue {
  /**
   * By id, `store..name`, or a bare name: in the default store, else the only one of that name. Only in the stores that
   * are `visible`: what is in others is answered for as if it did not exist.
   */
  resolve(ref: string, scope: Scope, visible?: (store: string) => boolean): Promise<Volume>;
  page(
    query: Omit<VolumeQuery, 'stores'> & { readonly stores: readonly string[] | undefined },
    scope: Scope,
  ): Promise<VolumePage>;
  /**
   * Makes our records of a store equal to what the store itself says, for what is this instance's or shared. Thorough:
   * what is on record is compared too, since a power cut can have taken back the newest of our records.
   */
  refresh(store: Store, scope: Scope, thorough?: boolean): Promise<void>;
}

export interface VolumePage {
  readonly volumes: readonly Volume[];
  /** The stores whose volumes are here as they were last seen. */
  readonly unanswered: readonly StoreName[];
}

const readsAtOnce = 16;

interface CatalogueParts {
  readonly records: Records;
  readonly stores: () => Stores;
  readonly answers: StoreAnswers;
  readonly instance: string;
}

export function createCatalogue(parts: CatalogueParts): Catalogue {
  const { records } = parts;
  const refresh = createRefresh(parts);
  const look = createLookup(parts, refresh);

  return {
    resolve: async (ref, scope, visible = () => true) => {
      if (isVolumeId(ref)) return await look.byId(ref, visible, scope);
      const qualified = partsOfQualified(ref);
      if (qualified === undefined) return await look.bare(ref, visible, scope);
      const { store, name } = qualified;
      if (!visible(store)) throw unknown(`${store}/${name}`);
      return await look.inStore(store, name, scope);
    },
    page: async (query, scope) => {
      const all = parts.stores().list();
      const stores = query.stores ?? all.map((view) => view.config.name);
      const names = stores.map((name) => parts.stores().view(name).config.name);
      // What a store held when it last answered is better than no list at all.
      const unanswered = await (query.after === undefined ? look.refreshAll(names, scope) : parts.answers.late(names));
      return { volumes: records.volumes.page({ ...query, stores: names }), unanswered };
    },
    refresh: refresh.all,
  };
}

interface Refresh {
  all: Catalogue['refresh'];
  /** What the store says of one name. */
  one(store: Store, name: VolumeName, scope: Scope): Promise<void>;
}

function createRefresh({ records, stores, instance }: CatalogueParts): Refresh {
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

  /** One record that cannot be read is an orphan, which is reported as such; it must not hide all the others. */
  async function read(store: Store, name: VolumeName, scope: Scope): Promise<Volume | undefined> {
    try {
      return (await store.get(name, scope))?.volume;
    } catch (thrown) {
      const { code, message, action } = stowageError(thrown);
      if (scope.signal.aborted || code === 'internal' || errorCodes[code].retry) throw thrown;
      scope.log.warn('a record is left out', { store: store.name, volume: name, why: message, action });
      return undefined;
    }
  }

  /** What was read of each volume that others can change, by store. Empty after a start: then all of it is read. */
  const marks = new WeakMap<Store, ReadonlyMap<VolumeName, string>>();

  /** Those that are there, each with whether our record of it is as good as the store's. */
  async function present(store: Store, scope: Scope): Promise<ReadonlyMap<VolumeName, boolean>> {
    const before = marks.get(store);
    const now = await store.marks?.(scope);
    if (now === undefined) return new Map((await store.names(scope)).map((name) => [name, true]));
    marks.set(store, now);
    return new Map(Array.from(now, ([name, mark]) => [name, before?.get(name) === mark]));
  }

  const all: Refresh['all'] = async (store, scope, thorough = false) => {
    const recorded = new Map(records.volumes.names(store.name).map((row) => [row.name as string, row.id]));
    const there = await present(store, scope);
    try {
      await eachBounded(there, readsAtOnce, async ([name, isSame]) => {
        if (recorded.delete(name) && isSame && !thorough) return;
        const found = await read(store, name, scope);
        scope.signal.throwIfAborted();
        if (found === undefined || isElsewhere(found)) return;
        if (store.shared || found.instance === instance) take(store, found);
      });
    } catch (cause) {
      // What was not read must be read next time.
      marks.delete(store);
      throw cause;
    }
    scope.signal.throwIfAborted();
    // What is left is recorded here and gone there. The store answered, so that is the truth.
    records.transaction(() => {
      for (const [name, id] of recorded) {
        // Under another name now: then it was renamed, and is on record already.
        if (records.volumes.byId(id)?.name === name) records.volumes.remove(id);
      }
    });
  };

  return {
    all,
    one: async (store, name, scope) => {
      const found = await read(store, name, scope);
      if (found !== undefined && isElsewhere(found)) return;
      if (found !== undefined) return take(store, found);
      const known = records.volumes.byName(store.name, name);
      if (known !== undefined) records.volumes.remove(known.id);
    },
  };
}

const isConfigured = (stores: Stores, name: string): boolean => stores.list().some((view) => view.config.name === name);

type Visible = (store: string) => boolean;

interface Lookup {
  byId(id: VolumeId, visible: Visible, scope: Scope): Promise<Volume>;
  inStore(store: string, name: string, scope: Scope): Promise<Volume>;
  bare(name: string, visible: Visible, scope: Scope): Promise<Volume>;
  /** Stores that others can change are asked; what only we change is in our records already. Gives those that did not answer. */
  refreshAll(names: readonly StoreName[], scope: Scope): Promise<readonly StoreName[]>;
}

function createLookup({ records, ...parts }: CatalogueParts, refresh: Refresh): Lookup {
  const refreshAll: Lookup['refreshAll'] = async (wanted, scope) => {
    const asked = await Promise.all(
      wanted.map((name) => parts.answers.list(name, scope, (open) => refresh.all(open, scope))),
    );
    return wanted.filter((_name, index) => !asked[index]);
  };

  /** The same for one name: a store may have very many. */
  const refreshOne = async (store: StoreName, name: VolumeName, scope: Scope): Promise<readonly StoreName[]> =>
    (await parts.answers.look(store, scope, (open) => refresh.one(open, name, scope))) ? [] : [store];

  const names = (visible: Visible): StoreName[] =>
    parts
      .stores()
      .list()
      .map((view) => view.config.name)
      .filter(visible);

  return {
    refreshAll,
    byId: async (id, visible, scope) => {
      const recorded = (): Volume | undefined => {
        const volume = records.volumes.byId(id);
        return volume !== undefined && visible(volume.store) ? volume : undefined;
      };
      const cached = recorded();
      // Another host may have renamed or deleted it.
      if (cached !== undefined && parts.stores().view(cached.store).store?.shared === true)
        await refreshOne(cached.store, cached.name, scope);
      const still = recorded();
      if (still !== undefined) return still;
      const down = await refreshAll(names(visible), scope);
      const found = recorded();
      if (found !== undefined) return found;
      // A store that is down must never make a volume look gone.
      throw down.length > 0 ? notSure(id, down) : unknown(id);
    },
    inStore: async (store, name, scope) => {
      const { config } = parts.stores().view(storeName(store));
      const wanted = volumeName(name);
      const down = await refreshOne(config.name, wanted, scope);
      const found = records.volumes.byName(config.name, wanted);
      if (found !== undefined) return found;
      throw down.length > 0 ? notSure(`${store}/${name}`, down) : unknown(`${store}/${name}`);
    },
    bare: async (name, visible, scope) => {
      const wanted = volumeName(name);
      const searched = names(visible);
      // What is in the default store is meant, whatever is in the others: they need not even answer.
      const usual = searched.find((store) => store === parts.stores().defaultName);
      if (usual !== undefined) await refreshOne(usual, wanted, scope);
      const meant = usual === undefined ? undefined : records.volumes.byName(usual, wanted);
      if (meant !== undefined) return meant;
      const down = (await Promise.all(searched.map((store) => refreshOne(store, wanted, scope)))).flat();
      // Our records may still know volumes of a store that is no longer configured.
      const found = records.volumes.named(wanted).filter((volume) => searched.includes(volume.store));
      const [first] = found;
      if (first !== undefined && found.length === 1) return first;
      if (found.length > 1) throw ambiguous(name, found);
      throw down.length > 0 ? notSure(name, down) : unknown(name);
    },
  };
}

function unknown(ref: string): StowageError {
  return new StowageError(`there is no volume ${quoted(ref)}`, {
    code: 'not-found',
    reason: 'volume-unknown',
    action: 'See what there is: stowage volume list',
  });
}

function notSure(ref: string, down: readonly string[]): StowageError {
  return new StowageError(
    `volume ${quoted(ref)} cannot be looked up: store ${down.map(quoted).join(', ')} does not answer`,
    {
      code: 'unavailable',
      reason: 'volume-lookup-incomplete',
      action: `Try again when it is back: stowage store check ${down[0] ?? ''}`,
    },
  );
}

function ambiguous(name: string, found: readonly Volume[]): StowageError {
  const candidates = found.map((volume) => `${volume.store}/${volume.name}`).join(', ');
  return new StowageError(`${quoted(name)} is in several stores: ${candidates}`, {
    code: 'conflict',
    reason: 'volume-ambiguous',
    action: 'Say which one, as store/name; to Docker and Podman, as store..name, also to make another of that name.',
  });
}
