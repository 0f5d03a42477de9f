import type { Scope } from '#base/log.ts';
import { createDeletionSteps, type DeletionResult, type DeletionSteps } from './deletion-steps.ts';
import { stowageError } from './errors.ts';
import { nameKey, volumeKey } from './lock-keys.ts';
import type { TrashEntry, Volume } from './model.ts';
import type { Call } from './operations.ts';
import type { PendingEngineRequests } from './pending-engine-requests.ts';
import type { Store } from './ports.ts';
import type { StoreLiveness } from './store-liveness.ts';
import {
  createPurge,
  createRestore,
  createTrashFinder,
  type RestoreVolume,
  type TrashList,
  type TrashPurge,
} from './trash.ts';
import { checkRevision, storeReadOnly, volumeNotEmpty } from './volume-errors.ts';
import type { Step } from './volume-steps.ts';
import type { VolumeParts } from './volumes.ts';

export interface DeleteOptions {
  /** The request comes from a container engine, which prevents its own containers from starting to use the volume. */
  readonly byEngine?: boolean;
  /** Destroy the data even if the store's policy is to retain or archive. For ephemeral volumes. */
  readonly destroy?: boolean;
  /** Like `destroy`, but only if the volume is certainly empty; otherwise 'conflict'. */
  readonly discard?: boolean;
}

export interface Deletions extends TrashPurge {
  /** The store's onDelete policy decides what happens to the data. */
  delete(
    ref: string,
    expectedRevision: number | undefined,
    call: Call,
    options?: DeleteOptions,
  ): Promise<DeletionResult>;
  trash(stores: readonly string[], scope: Scope): Promise<TrashList>;
  /** The trash of one store. Throws if the store does not answer. */
  trashOf(store: string, scope: Scope): Promise<readonly TrashEntry[]>;
  restore: RestoreVolume;
  readonly steps: Readonly<Record<string, Step>>;
}

export interface DeletionParts extends VolumeParts {
  readonly scheduleReclaim: (store: string) => void;
  readonly engineRequests: Pick<PendingEngineRequests, 'block'>;
  readonly liveness: Pick<StoreLiveness, 'findSilent' | 'denialOf'>;
}

export function createDeletions(parts: DeletionParts): Deletions {
  const steps = createDeletionSteps(parts);
  const finder = createTrashFinder(parts);
  return {
    delete: createDelete(parts, steps),
    trash: finder.list,
    trashOf: finder.listStore,
    restore: createRestore(parts, finder, steps),
    ...createPurge(parts, finder, steps),
    steps: { ...steps },
  };
}

function createDelete(parts: DeletionParts, steps: DeletionSteps): Deletions['delete'] {
  const { stores, catalogue, operations, mounts, engineMounts, clock, engineRequests } = parts;
  return async (ref, expectedRevision, call, options) => {
    const unlockedVolume = await catalogue.resolve(ref, call);
    await engineMounts.dropStale(unlockedVolume, call);
    return await stores.use(unlockedVolume.store, async (store, config) => {
      if (config.policy.readOnly) throw storeReadOnly(store.name);
      // Refuse early, before anything is locked, recorded or unmounted. The store checks again when it deletes.
      if (options?.discard === true) await refuseNotEmpty(unlockedVolume, store, call);
      const keys = [volumeKey(unlockedVolume.id), nameKey(unlockedVolume.store, unlockedVolume.name)];
      using _ = await operations.lock(keys, call.signal);
      const volume = await catalogue.resolve(unlockedVolume.id, call);
      checkRevision(volume, expectedRevision);
      // Waits until engines list containers that they are creating, and blocks new ones that would reference the volume.
      using _closed = await engineRequests.block(volume.id, options?.byEngine === true, call.signal);
      // Checks users on this node. The store checks other hosts while it holds the volume's lock; a check here would be too early.
      await mounts.refuseInUse(volume, store, 'deleted', call);
      const { destroy = false, discard = false } = options ?? {};
      const modeParams = { ...(destroy ? { destroy } : {}), ...(discard ? { discard } : {}) };
      const { retention } = config.policy;
      const params = { id: volume.id, name: volume.name, deletedAt: clock.now(), retention, ...modeParams };
      const intent = { kind: 'volume.delete', store: store.name, subject: `${store.name}/${volume.name}`, params };
      return await operations.run(intent, call, (work) => steps['volume.delete'](store, config, params, work));
    });
  };
}

async function refuseNotEmpty(volume: Volume, store: Store, scope: Scope): Promise<void> {
  const usage = await store.usage?.(volume, scope).catch((thrown: unknown) => {
    // The record or the data may be gone because an earlier deletion was interrupted. Let the store decide.
    const { code, reason } = stowageError(thrown);
    if (code !== 'not-found' && reason !== 'volume-data-unusable') throw thrown;
    return undefined;
  });
  if (usage?.empty === false) throw volumeNotEmpty(volume);
}
