import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Mount, Source, Volume } from './model.ts';
import type { Mounter, Records, Store } from './ports.ts';
import type { VolumeStaging } from './volume-staging.ts';

/** For who only reads nothing is changed. Call it when it is known that the volume may be had: it changes what is in it. */
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
   * Where nobody has the volume but the kubelet, which keeps it for the next pod, and that one's group is another: what is mounted
   * is taken away, to be mounted for that group, with nothing remembered of whose files were before. Gives what is to be bound again
   * then. Call it with the stage's lock held.
   */
  unbindForGroup(volume: Volume, wanted: Source, scope: Scope): Promise<readonly Mount[]>;
  rebind(again: readonly Mount[], source: Source, scope: Scope): Promise<void>;
}

interface GroupRemountParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounter: Mounter;
  readonly clients: Pick<Clients, 'groupOf'>;
}

export function createGroupRemount(
  { records, mounter, clients }: GroupRemountParts,
  staging: Pick<VolumeStaging, 'path'>,
  binding: { takeDown(mount: Mount, scope: Scope): Promise<void> },
): GroupRemount {
  return {
    unbindForGroup: async (volume, wanted, scope) => {
      const mounts = records.mounts.of(volume.id);
      const isIdle = mounts.every(({ user }) => user.kind === 'kubelet');
      if (!isIdle || mounts.every(({ source }) => clients.groupOf(source) === clients.groupOf(wanted))) return [];
      const taken: Mount[] = [];
      for (const mount of mounts) {
        try {
          await binding.takeDown(mount, scope);
          taken.push(mount);
        } catch (thrown) {
          // Then it is shared as it is, and whose files are is seen a little later.
          const why = stowageError(thrown).message;
          scope.log.info('a volume stays mounted for the group of before', { target: mount.target, why });
        }
      }
      return taken;
    },
    rebind: async (again, source, scope) => {
      for (const mount of again) {
        // First: what a crash leaves of it is known, and taken away at the next start.
        records.mounts.put({ ...mount, source });
        try {
          if (mount.madeTarget) await mounter.makeTarget(mount.target, 'filesystem', scope);
          await mounter.bind(staging.path(mount.volumeId), mount.target, { readOnly: mount.readOnly }, scope);
        } catch (thrown) {
          records.mounts.remove(mount.target);
          if (mount.madeTarget) await mounter.removeTarget(mount.target, scope).catch(() => undefined);
          // The pod has its own; what the kubelet takes away later may be gone already.
          const why = stowageError(thrown).message;
          scope.log.warn('what a kubelet staged is not there any more', { target: mount.target, why });
        }
      }
    },
  };
}
