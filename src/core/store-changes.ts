import type { Scope } from '#base/log.ts';
import type { Events } from './events.ts';
import type { StoreConfig, StoreName } from './model.ts';
import { askedPatienceMs, type Entries } from './store-entries.ts';
import { beingAdded, cannotAdd, notOurs, removed, stillMounted, taken } from './store-errors.ts';
import type { Reading } from './store-reading.ts';
import { parseStoreConfig } from './store-uri.ts';
import type { Stores, StoresParts, StoreView } from './stores.ts';

/** One change at a time. */
export type Exclusively = <T>(scope: Scope, work: () => Promise<T>) => Promise<T>;

export const published = (events: Events, type: 'added' | 'removed' | 'changed', { name, uri }: StoreConfig): void =>
  events.publish(`store.${type}`, name, name, { name, uri });

export function createChanges(
  parts: StoresParts,
  entries: Entries,
  reading: Reading,
  exclusively: Exclusively,
): Pick<Stores, 'setDefault' | 'add' | 'remove'> {
  const { records, events } = parts;
  /** Under way: the name is reserved, and whoever asks for the same gets the same. */
  const adding = new Map<string, { readonly uri: string; readonly work: Promise<StoreView> }>();

  /** A server that does not answer keeps nobody else waiting: only what is looked up and noted is done exclusively. */
  async function addNew(config: StoreConfig, scope: Scope): Promise<StoreView> {
    const present = await exclusively(scope, async () => entries.all.get(config.name));
    if (present?.config.uri === config.uri && present.problem === undefined) return reading.view(present);
    if (present !== undefined) throw taken(present.config);
    const entry = await entries.prepare(config, scope, askedPatienceMs);
    try {
      if (entry.problem !== undefined) throw cannotAdd(entry.problem);
      return await exclusively(scope, async () => {
        const meanwhile = entries.all.get(config.name);
        if (meanwhile !== undefined) throw taken(meanwhile.config);
        entries.settle(entry);
        records.stores.put(config.name, config.uri);
        published(events, 'added', config);
        return reading.view(entry);
      });
    } catch (cause) {
      await entries.shut(entry);
      entries.drop(entry);
      throw cause;
    }
  }

  return {
    setDefault: (name) => {
      const entry = reading.known(name);
      records.settings.set('defaultStore', entry.config.name);
      published(events, 'changed', entry.config);
      return reading.view(entry);
    },
    add: async (name, uri, scope) => {
      const config = parseStoreConfig(name, uri, 'api', parts.kinds);
      const under = adding.get(config.name);
      if (under !== undefined && under.uri !== uri) throw beingAdded(config.name);
      const work = under?.work ?? addNew(config, scope).finally(() => adding.delete(config.name));
      adding.set(config.name, { uri, work });
      return await work;
    },
    remove: (name, scope) =>
      exclusively(scope, async () => {
        const entry = reading.known(name);
        if (entry.config.origin !== 'api') throw notOurs(entry.config);
        refuseWhileMounted(parts, entry.config);
        await entries.shut(entry);
        entries.drop(entry);
        parts.identities.forget(entry.config.name);
        records.transaction(() => {
          records.stores.remove(entry.config.name);
          records.volumes.forgetStore(entry.config.name);
          giveUp(parts, entry.config.name);
        });
        published(events, 'removed', entry.config);
      }),
  };
}

/** What was interrupted on it can never be taken up again. */
function giveUp({ records, clock }: StoresParts, store: StoreName): void {
  const { code, reason, message, action } = removed(store);
  for (const operation of records.operations.unfinished()) {
    if (operation.store !== store) continue;
    records.operations.end(operation.id, 'canceled', clock.now(), { code, reason, message, action });
  }
}

export function refuseWhileMounted({ mountedOn }: StoresParts, config: StoreConfig): void {
  const mounted = mountedOn(config.name);
  if (mounted.length > 0) throw stillMounted(config, mounted);
}
