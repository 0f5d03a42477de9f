import type { Events } from './events.ts';
import type { Volume, VolumeId } from './model.ts';
import { volumeName } from './names.ts';
import type { Records } from './ports.ts';
import type { StagedVolumeChanges } from './staged-volume-changes.ts';
import { facetFor } from './store-facets.ts';
import { refFrom, type Step } from './volume-steps.ts';

export interface DeletionResult {
  readonly outcome: 'deleted' | 'archived' | 'retained';
  /** The earliest time at which the trash purges the volume, as recorded in the trash entry. */
  readonly expiresAt: number | undefined;
}

export interface DeletionSteps {
  readonly 'volume.delete': Step<DeletionResult>;
  readonly 'volume.restore': Step<Volume>;
  readonly 'trash.purge': Step<void>;
}

export function createDeletionSteps(parts: {
  readonly records: Pick<Records, 'volumes'>;
  readonly mounts: Pick<StagedVolumeChanges, 'unstageForDelete'>;
  readonly events: Events;
  readonly scheduleReclaim: (store: string) => void;
}): DeletionSteps {
  const { records, mounts, events, scheduleReclaim } = parts;

  const removedOutcome = (id: VolumeId, store: string, value: DeletionResult) => ({
    value,
    record: () => records.volumes.remove(id),
    announce: () => events.publish('volume.deleted', id, store, { id }),
  });

  return {
    'volume.delete': async (store, config, params, work) => {
      const ref = refFrom(params);
      const deletedAt = Number(params['deletedAt']);
      // Operations that an older version started have no retention.
      const retention = Number(params['retention'] ?? config.policy.retention);
      const isDiscarded = params['discard'] === true;
      const onDelete = isDiscarded || params['destroy'] === true ? 'delete' : config.policy.onDelete;
      const volume = records.volumes.byId(ref.id);
      if (volume !== undefined) await mounts.unstageForDelete(volume, store, work);
      switch (onDelete) {
        case 'delete':
          // The store checks for emptiness in its last step, also after a crash: somebody may have written in the meantime.
          await store.delete(ref, work, { onlyIfEmpty: isDiscarded });
          scheduleReclaim(store.name);
          return removedOutcome(ref.id, store.name, { outcome: 'deleted', expiresAt: undefined });
        case 'retain':
          await facetFor('retain', store).release(ref, work);
          return removedOutcome(ref.id, store.name, { outcome: 'retained', expiresAt: undefined });
        case 'archive':
          return removedOutcome(ref.id, store.name, {
            outcome: 'archived',
            expiresAt: await facetFor('archive', store).put(ref, { deletedAt, retention }, work),
          });
        default:
          return onDelete satisfies never;
      }
    },
    'volume.restore': async (store, _config, params, work) => {
      const volume = await facetFor('archive', store).restore(
        refFrom(params).id,
        volumeName(String(params['to'])),
        work,
      );
      return {
        value: volume,
        record: () => records.volumes.put(volume),
        announce: () => events.publish('volume.created', volume.id, volume.store, { volume }),
      };
    },
    'trash.purge': async (store, _config, params, work) => {
      const { id } = refFrom(params);
      // Operations that an older version started have only the id.
      const only = params['deletedAt'] === undefined ? undefined : { deletedAt: Number(params['deletedAt']) };
      const trash = facetFor('archive', store);
      if (params['expired'] === true) await trash.purgeExpired(id, work);
      else await trash.purge(id, work, only);
      scheduleReclaim(store.name);
      return { value: undefined };
    },
  };
}
