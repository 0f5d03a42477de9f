import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Events } from './events.ts';
import type { StoreConfig, StoreName } from './model.ts';
import type { Records, StoreKind } from './ports.ts';
import { requestedOpenTimeoutMs, type StoreEntries } from './store-entries.ts';
import { cannotAdd, notRemovable, storeBeingAdded, storeExists, storeMounted, storeRemoved } from './store-errors.ts';
import type { StoreIdentities } from './store-identity.ts';
import type { StoreLookup } from './store-lookup.ts';
import { parseStoreConfig } from './store-uri.ts';
import type { StoreView } from './store-view.ts';

/** Changes of the configured stores through the API. */
export interface StoreChanges {
  setDefault(name: string): StoreView;
  add(name: string, uri: string, scope: Scope): Promise<StoreView>;
  remove(name: string, scope: Scope): Promise<void>;
}

/** The store's volumes that are mounted on this node. A store with mounted volumes is not closed. */
export type MountedVolumesOf = (store: StoreName) => readonly string[];

export interface StoreChangesParts {
  readonly records: Records;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  readonly identities: Pick<StoreIdentities, 'forget'>;
  readonly events: Events;
  readonly mountedVolumesOf: MountedVolumesOf;
  readonly clock: Clock;
}

export const publishStoreEvent = (
  events: Events,
  type: 'added' | 'removed' | 'changed',
  { name, uri }: StoreConfig,
): void => events.publish(`store.${type}`, name, name, { name, uri });

export function createStoreChanges(parts: StoreChangesParts, entries: StoreEntries, lookup: StoreLookup): StoreChanges {
  const { records, events } = parts;
  /** Adds in progress. The name is reserved, and a repeated request waits for the same result. */
  const adding = new Map<string, { readonly uri: string; readonly work: Promise<StoreView> }>();

  /** Opens the store without blocking others, then checks the name and records the store in one synchronous step. */
  async function addNew(config: StoreConfig, scope: Scope): Promise<StoreView> {
    const present = entries.all.get(config.name);
    if (present?.config.uri === config.uri && present.problem === undefined) return lookup.view(present);
    if (present !== undefined) throw storeExists(present.config);
    const entry = await entries.openUnlisted(config, scope, requestedOpenTimeoutMs);
    try {
      if (entry.problem !== undefined) throw cannotAdd(entry.problem);
      const meanwhile = entries.all.get(config.name);
      if (meanwhile !== undefined) throw storeExists(meanwhile.config);
      entries.add(entry);
      records.stores.put(config.name, config.uri);
      publishStoreEvent(events, 'added', config);
      return lookup.view(entry);
    } catch (cause) {
      await entries.close(entry);
      entries.drop(entry);
      throw cause;
    }
  }

  return {
    setDefault: (name) => {
      const entry = lookup.entryOf(name);
      records.settings.set('defaultStore', entry.config.name);
      publishStoreEvent(events, 'changed', entry.config);
      return lookup.view(entry);
    },
    add: async (name, uri, scope) => {
      const config = parseStoreConfig(name, uri, 'api', parts.kinds);
      const addInProgress = adding.get(config.name);
      if (addInProgress !== undefined && addInProgress.uri !== uri) throw storeBeingAdded(config.name);
      const work = addInProgress?.work ?? addNew(config, scope).finally(() => adding.delete(config.name));
      adding.set(config.name, { uri, work });
      return await work;
    },
    remove: async (name) => {
      const entry = lookup.entryOf(name);
      const { config } = entry;
      if (config.origin !== 'api') throw notRemovable(config);
      refuseWhileMounted(parts.mountedVolumesOf, config);
      // The store keeps its name until its calls end. Changes of other stores do not wait for that.
      await entries.close(entry);
      const current = lookup.entryOf(name);
      // The configuration file claimed the name in the meantime.
      if (current !== entry) throw notRemovable(current.config);
      entries.drop(entry);
      parts.identities.forget(config.name);
      records.transaction(() => {
        records.stores.remove(config.name);
        records.volumes.forgetStore(config.name);
        cancelOperations(parts, config.name);
      });
      publishStoreEvent(events, 'removed', config);
    },
  };
}

/** Ends the store's interrupted operations, which can never be replayed now. */
function cancelOperations({ records, clock }: Pick<StoreChangesParts, 'records' | 'clock'>, store: StoreName): void {
  const { code, reason, message, action } = storeRemoved(store);
  for (const operation of records.operations.listUnfinished()) {
    if (operation.store !== store) continue;
    records.operations.end(operation.id, 'canceled', clock.now(), { code, reason, message, action });
  }
}

export function refuseWhileMounted(mountedOn: MountedVolumesOf, config: StoreConfig): void {
  const mounted = mountedOn(config.name);
  if (mounted.length > 0) throw storeMounted(config, mounted);
}
