import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Mount, Source, Volume } from './model.ts';
import type { Mounter, Records, Store } from './ports.ts';
import type { VolumeStaging } from './volume-staging.ts';

/** Does nothing for read-only mounts. Call it only after all checks have passed: it modifies the volume. */
export async function chownVolumeToGroup(
  store: Pick<Store, 'chownToGroup'>,
  { access }: Pick<Volume, 'access'>,
  { source, readOnly }: Pick<Mount, 'source' | 'readOnly'>,
  group: number | undefined,
  scope: Scope,
): Promise<void> {
  if (group !== undefined && !readOnly && access !== 'block') await store.chownToGroup?.(source, group, scope);
}

export interface GroupRemount {
  /**
   * If only the kubelet has the volume staged, and the next pod needs another group: unmounts everything, so that the volume can be mounted
   * for the new group without cached file ownership. Returns the mounts to pass to `rebind`. Call it with the stage's lock held.
   */
  unbindForGroup(volume: Volume, wanted: Source, scope: Scope): Promise<readonly Mount[]>;
  rebind(unboundMounts: readonly Mount[], source: Source, scope: Scope): Promise<void>;
}

interface GroupRemountParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounter: Mounter;
  readonly clients: Pick<Clients, 'groupOf'>;
}

export function createGroupRemount(
  { records, mounter, clients }: GroupRemountParts,
  staging: Pick<VolumeStaging, 'path'>,
  binding: { unmount(mount: Mount, scope: Scope): Promise<void> },
): GroupRemount {
  return {
    unbindForGroup: async (volume, wanted, scope) => {
      const mounts = records.mounts.byVolume(volume.id);
      const isIdle = mounts.every(({ user }) => user.kind === 'kubelet');
      if (!isIdle || mounts.every(({ source }) => clients.groupOf(source) === clients.groupOf(wanted))) return [];
      const unbound: Mount[] = [];
      for (const mount of mounts) {
        try {
          await binding.unmount(mount, scope);
          unbound.push(mount);
        } catch (thrown) {
          // The mount is shared as it is; the new file ownership becomes visible a little later.
          const why = stowageError(thrown).message;
          scope.log.info('a volume stays mounted for its previous group', { target: mount.target, why });
        }
      }
      return unbound;
    },
    rebind: async (unboundMounts, source, scope) => {
      for (const mount of unboundMounts) {
        // Record it before binding, so that the next start can clean up after a crash.
        records.mounts.put({ ...mount, source });
        try {
          if (mount.madeTarget) await mounter.makeTarget(mount.target, 'filesystem', scope);
          await mounter.bind(staging.path(mount.volumeId), mount.target, { readOnly: mount.readOnly }, scope);
        } catch (thrown) {
          records.mounts.remove(mount.target);
          if (mount.madeTarget) await mounter.removeTarget(mount.target, scope).catch(() => undefined);
          // The pod has its own mount, and the kubelet accepts that its mount is already gone.
          const why = stowageError(thrown).message;
          scope.log.warn('a mount that a kubelet staged is gone', { target: mount.target, why });
        }
      }
    },
  };
}
