import type { Scope } from '#base/log.ts';
import { StowageError } from './errors.ts';
import { volumeKey } from './lock-keys.ts';
import type { SeenUse, Volume } from './model.ts';
import { quoted } from './names.ts';
import type { Call } from './operations.ts';
import { facetOf } from './store-facets.ts';
import { storeReadOnly } from './volume-errors.ts';
import { refFrom, type Step } from './volume-steps.ts';
import type { VolumeParts } from './volumes.ts';

/** Shows the use records of a volume, and lets a person break the record of a host that is gone. */
export interface UseAdmin {
  /** Undefined: the store keeps no use records, since other hosts cannot use its volumes. */
  list(volume: Volume, scope: Scope): Promise<readonly SeenUse[] | undefined>;
  /**
   * Breaks the use record and the writer lease of a host; 'not-found' if it has none. Does not contact the host: if it is
   * alive, it continues writing and recreates the record at its next renewal.
   */
  release(ref: string, host: string, call: Call): Promise<void>;
  readonly steps: Readonly<Record<string, Step>>;
}

export function createUseAdmin({
  stores,
  catalogue,
  operations,
}: Pick<VolumeParts, 'stores' | 'catalogue' | 'operations'>): UseAdmin {
  const release: Step<void> = async (store, _config, params, work) => {
    await facetOf(store, 'uses').remove(refFrom(params).id, String(params['host']), work);
    return { value: undefined };
  };

  return {
    list: (volume, scope) => stores.use(volume.store, async (store) => store.uses?.list(volume.id, scope)),
    release: async (ref, host, call) => {
      const unlockedVolume = await catalogue.resolve(ref, call);
      await stores.use(unlockedVolume.store, async (store, config) => {
        if (config.policy.readOnly) throw storeReadOnly(store.name);
        using _ = await operations.lock([volumeKey(unlockedVolume.id)], call.signal);
        const volume = await catalogue.resolve(unlockedVolume.id, call);
        const uses = await facetOf(store, 'uses').list(volume.id, call);
        if (!uses.some((use) => use.host === host)) throw useUnknown(volume, host);
        const params = { id: volume.id, name: volume.name, host };
        const intent = { kind: 'volume.release', store: store.name, subject: `${store.name}/${volume.name}`, params };
        await operations.run(intent, call, (work) => release(store, config, params, work));
      });
    },
    steps: { 'volume.release': release },
  };
}

function useUnknown({ store, name }: Volume, host: string): StowageError {
  return new StowageError(`host ${quoted(host)} has no use record of volume '${store}/${name}'`, {
    code: 'not-found',
    reason: 'use-unknown',
    action: `List the use records with their host ids: stowage volume show ${store}/${name}`,
  });
}
