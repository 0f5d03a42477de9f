import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import { stageKey } from './lock-keys.ts';
import type { Source, Volume, VolumeId } from './model.ts';
import type { Operations } from './operations.ts';
import type { Mounter, Records, Store } from './ports.ts';
import type { UsePublisher } from './use-publisher.ts';
import type { VolumeStaging } from './volume-staging.ts';

/** Keeps the staged mount in step with changes of the volume. */
export interface StagedVolumeChanges {
  /** Unstages a volume that is about to be deleted. Call it after `refuseInUse`. */
  unstageForDelete(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** Call it before renaming an image, since the record of an unfinished unmount has the old path. */
  finishUnmounts(volume: VolumeId, scope: Scope): Promise<void>;
  /** Grows the file system. Call it after the store enlarged the volume. */
  grow(volume: Volume, store: Store, scope: Scope): Promise<void>;
}

export interface StagedVolumeChangesParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounter: Pick<Mounter, 'unable'>;
  readonly clients: Clients;
  readonly operations: Pick<Operations, 'lock'>;
}

export function createStagedVolumeChanges(
  { records, operations, mounter, clients }: StagedVolumeChangesParts,
  staging: VolumeStaging,
  uses: Pick<UsePublisher, 'update'>,
): StagedVolumeChanges {
  return {
    unstageForDelete: async (volume, store, scope) => {
      if (mounter.unable !== undefined) return;
      const isRecorded = records.mounts.byVolume(volume.id).length > 0;
      const isStaged = isRecorded || (await staging.isStaged(volume.id, scope));
      // A device can be attached even if nothing is mounted or recorded.
      if (!isStaged && !store.sources.some((kind) => clients.ofKind(kind).outlivesMount)) return;
      using _ = await operations.lock([stageKey(volume.id)], scope.signal);
      const mounts = records.mounts.byVolume(volume.id);
      const readSource = (): Promise<Source | undefined> =>
        isStaged ? store.source(volume, scope) : sourceIfReadable(volume, store, scope);
      // Prefer the recorded source: the store may no longer have the data.
      const source = mounts[0]?.source ?? (await readSource());
      if (source === undefined || (!isStaged && !clients.outlivesMount(source))) return;
      await staging.unstage(source, volume.id, scope);
      for (const mount of mounts) records.mounts.remove(mount.target);
      // Skip node-local volumes: they have no use records, and during recovery this would wait for the store to open.
      if (!clients.isNodeLocal(source)) await uses.update(volume.id, scope);
    },
    finishUnmounts: async (id, scope) => {
      if (mounter.unable !== undefined) return;
      using _ = await operations.lock([stageKey(id)], scope.signal);
      for (const mount of await staging.withKernelState(records.mounts.byVolume(id), scope)) {
        if (mount.mounted || !clients.outlivesMount(mount.source)) continue;
        await staging.unstageIfIdle(mount, scope);
        records.mounts.remove(mount.target);
      }
    },
    grow: async (volume, store, scope) => {
      if (mounter.unable !== undefined || !(await staging.isStaged(volume.id, scope))) return;
      using _ = await operations.lock([stageKey(volume.id)], scope.signal);
      const source = await store.source(volume, scope);
      await staging.grow(source, volume.id, scope);
    },
  };
}

/** Returns undefined if the data is gone or unreadable, so that a volume on a failing disk can be deleted. */
async function sourceIfReadable(volume: Volume, store: Store, scope: Scope): Promise<Source | undefined> {
  return await store.source(volume, scope).catch((thrown: unknown) => {
    scope.signal.throwIfAborted();
    const { code, message: why } = stowageError(thrown);
    if (code !== 'not-found')
      scope.log.warn('it is unknown whether the image of a volume is attached', { volume: volume.id, why });
    return undefined;
  });
}
