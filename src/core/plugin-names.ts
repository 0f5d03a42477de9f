import type { Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import { type PluginName, pluginNames } from './containers.ts';
import { relayed, StowageError, stowageError } from './errors.ts';
import type { StoreName, Volume, VolumeId } from './model.ts';
import { isVolumeName, partsOfQualified, qualified, quoted } from './names.ts';
import { isShared, type Placement } from './placement.ts';
import type { Records } from './ports.ts';
import { unknownStore } from './store-errors.ts';
import type { Stores } from './stores.ts';

/**
 * The flat volume names of container engines. On this host a name refers to the same volume for as long as that volume exists: a
 * volume that is created later with the same name in another store must not replace it in a container.
 */
export interface PluginNames {
  /** The volume that the name refers to according to our records, even while its store does not answer. */
  recordedId(plugin: PluginName, name: string): VolumeId | undefined;
  /** Records that the name refers to this volume. */
  remember(plugin: PluginName, name: string, id: VolumeId): void;
  /** Removes the names of a deleted volume. `list` removes the names of volumes that other hosts destroyed. */
  forget(id: VolumeId): void;
  /**
   * Looks up the recorded name, then `store..name`, then the default store, then the only other store with that name, of either
   * plugin's scope: Docker asks both plugins for a name, in any order, and takes the first that has it.
   */
  resolve(plugin: PluginName, name: string, scope: Scope): Promise<Volume>;
  /** Lists each volume in the plugin's scope once. Stores that do not answer contribute their last known volumes. */
  list(plugin: PluginName, scope: Scope): Promise<readonly { readonly name: string; readonly volume: Volume }[]>;
  /** The store and the volume name for a create request. */
  storeAndNameFor(
    plugin: PluginName,
    name: string,
    store: string | undefined,
  ): { readonly store: StoreName; readonly name: string };
}

export interface PluginNamesParts {
  readonly records: Records;
  readonly stores: Stores;
  readonly catalogue: Catalogue;
}

const pageSize = 1_000;

export function createPluginNames(parts: PluginNamesParts): PluginNames {
  const { records, stores, catalogue } = parts;
  const isStoreOf =
    (plugin: PluginName) =>
    (store: string): boolean =>
      stores.list().some((view) => view.config.name === store && pluginOf(view.placement) === plugin);
  const storesOf = (plugin: PluginName): readonly StoreName[] =>
    stores.list().flatMap(({ config, placement }) => (pluginOf(placement) === plugin ? [config.name] : []));

  async function resolveRecorded(plugin: PluginName, name: string, scope: Scope): Promise<Volume | undefined> {
    const id = records.engineNames.get(plugin, name);
    if (id === undefined) return undefined;
    try {
      return await catalogue.resolve(id, scope, isStoreOf(plugin));
    } catch (thrown) {
      // 'not-found' means that every store answered, so the volume is gone and its name is free.
      if (stowageError(thrown).code !== 'not-found') throw thrown;
      if (!isReferenced(id)) records.engineNames.remove(plugin, name);
      return undefined;
    }
  }

  /** A container still references the volume, or an engine has it mounted and will unmount it by this name. */
  const isReferenced = (id: VolumeId): boolean =>
    records.engineMounts.byVolume(id).length > 0 || records.references.byVolume(id).length > 0;

  function forgetWhere(plugin: PluginName, isGone: (id: VolumeId) => boolean): void {
    for (const { name, id } of records.engineNames.list(plugin))
      if (isGone(id) && !isReferenced(id)) records.engineNames.remove(plugin, name);
  }

  function explainOtherPlugin(plugin: PluginName, name: string, thrown: unknown): unknown {
    const other = otherPlugin(plugin);
    const bare = partsOfQualified(name)?.name ?? name;
    if (stowageError(thrown).code !== 'not-found' || !isVolumeName(bare)) return thrown;
    const otherVolume = records.volumes.allByName(bare).find(({ store }) => isStoreOf(other)(store));
    if (otherVolume === undefined) return thrown;
    // Still 'not-found', so that an engine can remove the volume.
    return otherScope(`volume '${otherVolume.store}/${otherVolume.name}'`, otherVolume.store, plugin, 'not-found');
  }

  /** Throws if the name refers to a volume of the other plugin on this host. */
  async function refuseOtherPluginsName(plugin: PluginName, found: Volume, name: string, scope: Scope): Promise<void> {
    const other = otherPlugin(plugin);
    const id = records.engineNames.get(other, name);
    const known = id && records.volumes.byId(id);
    const isQualified = partsOfQualified(name) !== undefined;
    // A volume in the default store takes precedence unless the name was recorded before, so other stores need not be asked.
    if (known === undefined && (isQualified || found.store === stores.defaultName)) return;
    const resolved = known ?? (await catalogue.resolve(name, scope));
    if (resolved.id !== found.id && isStoreOf(other)(resolved.store))
      throw otherScope(
        `${quoted(name)} refers to volume '${resolved.store}/${resolved.name}', which`,
        resolved.store,
        plugin,
      );
  }

  return {
    recordedId: (plugin, name) => records.engineNames.get(plugin, name),
    remember: (plugin, name, id) => records.engineNames.put(plugin, name, id),
    forget: (id) => {
      for (const plugin of pluginNames) forgetWhere(plugin, (known) => known === id);
    },
    resolve: async (plugin, name, scope) => {
      const recordedVolume = await resolveRecorded(plugin, name, scope);
      if (recordedVolume !== undefined) return recordedVolume;
      const volume = await catalogue.resolve(name, scope, isStoreOf(plugin)).catch((thrown: unknown) => {
        throw explainOtherPlugin(plugin, name, thrown);
      });
      await refuseOtherPluginsName(plugin, volume, name, scope);
      records.engineNames.put(plugin, name, volume.id);
      return volume;
    },
    list: async (plugin, scope) => {
      const names = storesOf(plugin);
      const volumes: Volume[] = [];
      const unansweredStores: StoreName[] = [];
      for (let after: { store: string; name: string } | undefined; names.length > 0; ) {
        const query = { stores: names, labels: {}, contains: undefined, after, limit: pageSize };
        const page = await catalogue.page(query, scope);
        volumes.push(...page.volumes);
        unansweredStores.push(...page.unanswered);
        after = page.volumes.at(-1);
        if (page.volumes.length < pageSize) break;
      }
      const listedIds = new Set(volumes.map(({ id }) => id));
      // If every store answered, volumes that were not listed are gone, unless they were created in the meantime.
      if (unansweredStores.length === 0)
        forgetWhere(plugin, (id) => !listedIds.has(id) && records.volumes.byId(id) === undefined);
      const otherPluginsNames = new Set(records.engineNames.list(otherPlugin(plugin)).map(({ name }) => name));
      const isOtherPluginsStore = isStoreOf(otherPlugin(plugin));
      const isOtherPluginsName = ({ name, store }: Volume): boolean =>
        otherPluginsNames.has(name) ||
        (store !== stores.defaultName && records.volumes.allByName(name).some((one) => isOtherPluginsStore(one.store)));
      return nameVolumes(volumes, records.engineNames.list(plugin), stores.defaultName, isOtherPluginsName);
    },
    storeAndNameFor: (plugin, name, requestedStore) => {
      const parts = partsOfQualified(name);
      if (parts !== undefined && requestedStore !== undefined && requestedStore !== parts.store)
        throw storeContradiction(name, requestedStore);
      const store = parts?.store ?? requestedStore ?? chooseStore(plugin, storesOf(plugin), stores.defaultName);
      const view = stores.list().find(({ config }) => config.name === store);
      if (view === undefined) throw noStore(store, storesOf(plugin));
      const { config, placement } = view;
      if (pluginOf(placement) !== plugin) throw otherScope(`store '${config.name}'`, config.name, plugin);
      return { store: config.name, name: parts?.name ?? name };
    },
  };
}

const pluginOf = (placement: Placement): PluginName => (isShared(placement) ? 'stowage' : 'stowage-local');

const otherPlugin = (plugin: PluginName): PluginName => pluginNames.find((name) => name !== plugin) ?? plugin;

function nameVolumes(
  volumes: readonly Volume[],
  recordedNames: readonly { readonly name: string; readonly id: string }[],
  defaultStore: StoreName | undefined,
  isOtherPluginsName: (volume: Volume) => boolean,
): readonly { readonly name: string; readonly volume: Volume }[] {
  const byId = new Map(recordedNames.map(({ name, id }) => [id, name]));
  const takenNames = new Set(recordedNames.map(({ name }) => name));
  const count = new Map<string, number>();
  const inDefaultStore = new Set<string>();
  for (const { name, store } of volumes) {
    count.set(name, (count.get(name) ?? 0) + 1);
    if (store === defaultStore) inDefaultStore.add(name);
  }
  return volumes.map((volume) => {
    const { id, name, store } = volume;
    const isUnambiguous = store === defaultStore || (!inDefaultStore.has(name) && count.get(name) === 1);
    const bare = isUnambiguous && !takenNames.has(name) && !isOtherPluginsName(volume) ? name : qualified(store, name);
    return { name: byId.get(id) ?? bare, volume };
  });
}

function chooseStore(plugin: PluginName, all: readonly StoreName[], preferred: StoreName | undefined): StoreName {
  const [first, ...others] = all;
  if (preferred !== undefined && all.includes(preferred)) return preferred;
  if (first !== undefined && others.length === 0) return first;
  if (first === undefined)
    throw new StowageError(`plugin ${plugin} has no store: ${pluginScopes[plugin]}`, {
      code: 'not-found',
      reason: 'plugin-without-store',
      action: `Ask the administrator for such a store (stowage store add), or use the driver ${otherPlugin(plugin)}.`,
    });
  throw new StowageError(`no store was named, and none of the stores of plugin ${plugin} is the default`, {
    code: 'invalid',
    reason: 'plugin-store-unnamed',
    action: `Specify one: -o store=NAME, with one of ${all.map(quoted).join(', ')}`,
  });
}

const pluginScopes: Readonly<Record<PluginName, string>> = {
  stowage: 'it shows stores that other hosts share',
  'stowage-local': 'it shows stores of this machine',
};

function otherScope(
  what: string,
  store: string,
  plugin: PluginName,
  code: 'invalid' | 'not-found' = 'invalid',
): StowageError {
  const other = otherPlugin(plugin);
  return new StowageError(`${what} is not for plugin ${plugin}: ${pluginScopes[plugin]}`, {
    code,
    reason: 'plugin-other-scope',
    action: `Use the driver ${other} for store '${store}': docker volume create -d ${other} -o store=${store} NAME`,
  });
}

/** Lists this plugin's stores: users of a container engine may have no other way to see them. */
function noStore(name: string, others: readonly StoreName[]): StowageError {
  const { message, code, reason, action } = unknownStore(name);
  const these = others.map(quoted).join(', ');
  return relayed(message, {
    code,
    reason,
    action: others.length === 0 ? action : `Use a store of this driver: ${these}`,
  });
}

function storeContradiction(name: string, store: string): StowageError {
  return new StowageError(`${quoted(name)} names another store than -o store=${store}`, {
    code: 'invalid',
    reason: 'plugin-store-contradiction',
    action: 'Leave out one of them.',
  });
}
