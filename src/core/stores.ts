import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { StoreName } from './model.ts';
import { createStoreChanges, refuseWhileMounted, type StoreChanges, type StoreChangesParts } from './store-changes.ts';
import { createStoreChecks, type StoreChecks } from './store-check.ts';
import { createStoreConfiguration, type StoreConfiguration } from './store-configuration.ts';
import { createStoreEntries, requestedOpenTimeoutMs, type StoreEntryParts } from './store-entries.ts';
import type { StoreIdentities } from './store-identity.ts';
import { createStoreLookup, type StoreLookup } from './store-lookup.ts';
import type { StoreView, UsableStoreView } from './store-view.ts';

/** The configured stores, for front ends and controllers, which must not call methods of a store. */
export interface ConfiguredStores extends StoreChanges, StoreConfiguration, StoreChecks {
  list(): readonly StoreView[];
  view(name: string): StoreView;
  readonly defaultName: StoreName | undefined;
  /** Accepts the store that is now at the location, although its identity differs from the former store. */
  accept(name: string, scope: Scope): Promise<void>;
}

/** The configured stores, for core only. */
export interface Stores extends ConfiguredStores, Pick<StoreLookup, 'use' | 'useInBackground'> {
  list(): readonly UsableStoreView[];
  view(name: string): UsableStoreView;
  close(): Promise<void>;
}

export interface StoresParts extends Omit<StoreEntryParts, 'identityOf'>, StoreChangesParts {
  readonly identities: StoreIdentities;
}

const closeDeadlineMs = 5_000;

export function createStores(parts: StoresParts): Stores {
  const { clock, identities, mountedVolumesOf } = parts;
  const entries = createStoreEntries({ ...parts, identityOf: identities.identityOf });
  const lookup = createStoreLookup(parts, entries);
  return {
    list: lookup.list,
    view: (name) => lookup.view(lookup.entryOf(name)),
    use: lookup.use,
    useInBackground: lookup.useInBackground,
    get defaultName() {
      return lookup.defaultName();
    },
    ...createStoreChanges(parts, entries, lookup),
    ...createStoreConfiguration(parts, entries, lookup),
    ...createStoreChecks(parts, entries, lookup),
    accept: async (name, scope) => {
      const entry = lookup.entryOf(name);
      if (entry.problem?.reason !== 'store-identity') return;
      refuseWhileMounted(mountedVolumesOf, entry.config);
      // The running attempt still expects the old identity.
      if (entry.opening !== undefined) await endsWithin(entry.opening, requestedOpenTimeoutMs, clock);
      identities.forget(name);
      await entries.open(entry, scope, requestedOpenTimeoutMs);
    },
    close: async () => {
      const all = [...entries.all.values(), ...entries.unlisted.values()];
      // A store that is still opening must not finish, and keep its lock, after the shutdown.
      for (const entry of all) entries.drop(entry);
      await endsWithin(Promise.all(all.map((entry) => entry.store?.close())), closeDeadlineMs, clock);
    },
  };
}
