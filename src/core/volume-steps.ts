import type { Events } from './events.ts';
import type { Labels, StoreConfig, Volume, VolumeRef } from './model.ts';
import { volumeName } from './names.ts';
import type { Outcome, Work } from './operation-work.ts';
import type { Records, Store } from './ports.ts';
import type { StagedVolumeChanges } from './staged-volume-changes.ts';
import { facetOf } from './store-facets.ts';
import type { KindsWithOffers } from './store-offers.ts';
import { cannotEnforce } from './volume-errors.ts';
import { specFrom } from './volume-params.ts';

/** The work of one kind of operation. Idempotent, since a replay runs it again after a crash. */
export type Step<T = unknown> = (
  store: Store,
  config: StoreConfig,
  params: Readonly<Record<string, unknown>>,
  work: Work,
) => Promise<Outcome<T>>;

export const refFrom = (params: Readonly<Record<string, unknown>>): VolumeRef => ({
  id: params['id'] as Volume['id'],
  name: params['name'] as Volume['name'],
});

export type VolumeSteps = Readonly<
  Record<'volume.create' | 'volume.expand' | 'volume.enforce' | 'volume.rename' | 'volume.label', Step<Volume>>
>;

export function createVolumeSteps(parts: {
  readonly records: Records;
  readonly kinds: KindsWithOffers;
  readonly events: Events;
  readonly mounts: Pick<StagedVolumeChanges, 'grow'>;
}): VolumeSteps {
  const { records, kinds, events, mounts } = parts;

  const changedOutcome = (volume: Volume, type: 'created' | 'changed') => ({
    value: volume,
    record: () => records.volumes.put(volume),
    announce: () => events.publish(`volume.${type}`, volume.id, volume.store, { volume }),
  });

  return {
    'volume.create': async (store, _config, params, work) => {
      const volume = await store.create(specFrom(params), work);
      return changedOutcome(volume, 'created');
    },
    'volume.expand': async (store, _config, params, work) => {
      const volume = await facetOf(store, 'expand')(refFrom(params), BigInt(String(params['bytes'])), work);
      // Record the new size now, since the store has enlarged the volume even if growing the file system fails.
      const outcome = changedOutcome(volume, 'changed');
      outcome.record();
      outcome.announce();
      await mounts.grow(volume, store, work);
      return { value: volume };
    },
    'volume.enforce': async (store, _config, params, work) => {
      if (store.enforcement?.enforce === undefined) throw cannotEnforce(store.name, kinds);
      const volume = await store.enforcement.enforce(refFrom(params), work);
      return changedOutcome(volume, 'changed');
    },
    'volume.rename': async (store, _config, params, work) => {
      const volume = await facetOf(store, 'rename')(refFrom(params), volumeName(String(params['to'])), work);
      return changedOutcome(volume, 'changed');
    },
    'volume.label': async (store, _config, params, work) => {
      const volume = await store.label(refFrom(params), params['labels'] as Labels, work);
      return changedOutcome(volume, 'changed');
    },
  };
}
