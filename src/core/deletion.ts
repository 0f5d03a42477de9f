import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import { nameKey, volumeKey } from './lock-keys.ts';
import type { TrashEntry, Volume, VolumeId } from './model.ts';
import { volumeName } from './names.ts';
import type { Call } from './operations.ts';
import type { PendingEngineRequests } from './pending-engine-requests.ts';
import type { Store } from './ports.ts';
import { facetFor } from './store-facets.ts';
import type { StoreLiveness } from './store-liveness.ts';
import { createPurge, createRestore, createTrashFinder, type TrashList } from './trash.ts';
import { checkRevision, storeReadOnly, volumeNotEmpty } from './volume-errors.ts';
import { refFrom, type Step } from './volume-steps.ts';
import type { VolumeParts } from './volumes.ts';

export interface DeletionResult {
  readonly outcome: 'deleted' | 'archived' | 'retained';
  /** The earliest time at which the trash purges the volume, as in its entry. */
  readonly expiresAt: number | undefined;
}

export interface DeleteOptions {
  /** A container engine requests it, and prevents its own containers from starting to use the volume. */
  readonly byEngine?: boolean;
  /** Destroy the data even if the store's policy is to retain or archive. For ephemeral volumes. */
  readonly destroy?: boolean;
  /** Like `destroy`, but only if the volume is certainly empty; otherwise 'conflict'. */
  readonly discard?: boolean;
}

export interface Deletions {
  /** The store's onDelete policy decides what happens to the data. */
  delete(ref: string, expected: number | undefined, call: Call, how?: DeleteOptions): Promise<DeletionResult>;
  trash(stores: readonly string[], scope: Scope): Promise<TrashList>;
  /** The trash of one store. Throws if the store does not answer. */
  trashOf(store: string, scope: Scope): Promise<readonly TrashEntry[]>;
  /** Restores under the old name, or under `name`. */
  restore(id: string, name: string | undefined, allowed: (store: string) => boolean, call: Call): Promise<Volume>;
  purge(id: string, allowed: (store: string) => boolean, call: Call): Promise<void>;
  /** Purges entries whose retention has expired. */
  expire(scope: Scope): Promise<void>;
  /** Cancels the work that `expire` started. */
  stop(): void;
  readonly steps: Readonly<Record<string, Step>>;
}

export interface DeletionParts extends VolumeParts {
  readonly reclaimSoon: (store: string) => void;
  readonly engineRequests: Pick<PendingEngineRequests, 'close'>;
  readonly liveness: Pick<StoreLiveness, 'silent' | 'refusal'>;
}

export interface DeletionSteps {
  readonly 'volume.delete': Step<DeletionResult>;
  readonly 'volume.restore': Step<Volume>;
  readonly 'trash.purge': Step<void>;
}

export function createDeletions(parts: DeletionParts): Deletions {
  const steps = createSteps(parts);
  const finder = createTrashFinder(parts);
  return {
    delete: createDelete(parts, steps),
    trash: finder.list,
    trashOf: finder.of,
    restore: createRestore(parts, finder, steps),
    ...createPurge(parts, finder, steps),
    steps: { ...steps },
  };
}

function createDelete(parts: DeletionParts, steps: DeletionSteps): Deletions['delete'] {
  const { stores, catalogue, operations, mounts, engineMounts, clock, engineRequests } = parts;
  return async (ref, expected, call, how) => {
    const before = await catalogue.resolve(ref, call);
    await engineMounts.dropStale(before, call);
    return await stores.use(before.store, async (store, config) => {
      if (config.policy.readOnly) throw storeReadOnly(store.name);
      // Refuse early, before anything is locked, recorded or unmounted. The store checks again when it deletes.
      if (how?.discard === true) await refuseFull(before, store, call);
      const keys = [volumeKey(before.id), nameKey(before.store, before.name)];
      using _ = await operations.lock(keys, call.signal);
      const volume = await catalogue.resolve(before.id, call);
      checkRevision(volume, expected);
      // Waits until engines list containers that they are creating, and blocks new ones that would reference the volume.
      using _closed = await engineRequests.close(volume.id, how?.byEngine === true, call.signal);
      // Checks users on this node. The store checks other hosts while it holds the volume's lock; a check here would be too early.
      await mounts.refuseInUse(volume, store, 'deleted', call);
      const { destroy = false, discard = false } = how ?? {};
      const manner = { ...(destroy ? { destroy } : {}), ...(discard ? { discard } : {}) };
      const { retention } = config.policy;
      const params = { id: volume.id, name: volume.name, deletedAt: clock.now(), retention, ...manner };
      const intent = { kind: 'volume.delete', store: store.name, subject: `${store.name}/${volume.name}`, params };
      return await operations.run(intent, call, (work) => steps['volume.delete'](store, config, params, work));
    });
  };
}

async function refuseFull(volume: Volume, store: Store, scope: Scope): Promise<void> {
  const usage = await store.usage?.(volume, scope).catch((thrown: unknown) => {
    // The record or the data may be gone because an earlier deletion was interrupted. Let the store decide.
    const { code, reason } = stowageError(thrown);
    if (code !== 'not-found' && reason !== 'volume-data-unusable') throw thrown;
    return undefined;
  });
  if (usage?.empty === false) throw volumeNotEmpty(volume);
}

function createSteps(parts: DeletionParts): DeletionSteps {
  const { records, mounts, events, reclaimSoon } = parts;

  const gone = (id: VolumeId, store: string, value: DeletionResult) => ({
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
          reclaimSoon(store.name);
          return gone(ref.id, store.name, { outcome: 'deleted', expiresAt: undefined });
        case 'retain':
          await facetFor('retain', store).release(ref, work);
          return gone(ref.id, store.name, { outcome: 'retained', expiresAt: undefined });
        case 'archive':
          return gone(ref.id, store.name, {
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
      reclaimSoon(store.name);
      return { value: undefined };
    },
  };
}
