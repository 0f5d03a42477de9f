import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Mount, Volume } from './model.ts';
import type { Mounter, Records, UnstageOptions } from './ports.ts';
import type { UsePublisher } from './use-publisher.ts';
import { isOurMount, type VolumeStaging } from './volume-staging.ts';

/** Binds a staged volume to a target and undoes that. All methods are idempotent. Call them with the locks held. */
export interface TargetBinding {
  bind(mount: Mount, volume: Volume, scope: Scope): Promise<void>;
  /** Undoes whatever an interrupted `bind` did, and nothing else. */
  undo(mount: Mount, scope: Scope): Promise<void>;
  unmount(mount: Mount, scope: Scope, options?: UnstageOptions): Promise<void>;
}

export interface TargetBindingParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounter: Mounter;
  readonly clients: Clients;
}

export function createTargetBinding(
  { records, mounter, clients }: TargetBindingParts,
  staging: VolumeStaging,
  uses: Pick<UsePublisher, 'update'>,
): TargetBinding {
  async function unmountIfOurs(mount: Mount, scope: Scope, options?: UnstageOptions): Promise<void> {
    const table = await mounter.list(scope);
    const ours = isOurMount(table, staging.path(mount.volumeId), mount);
    if (ours && options?.force === true) await mounter.detach(mount.target, scope);
    else if (ours) await mounter.unmount(mount.target, scope);
    else if (table.some((point) => point.at === mount.target))
      scope.log.warn('not unmounting: something else is mounted there now', { target: mount.target });
  }

  /** With force, a device that is still in use stays attached. The next start, or deleting the volume, detaches it. */
  async function unstageMount(mount: Mount, scope: Scope, options?: UnstageOptions): Promise<void> {
    try {
      await staging.unstageIfIdle(mount, scope, options);
    } catch (thrown) {
      const { code, message: why } = stowageError(thrown);
      if (options?.force !== true || code !== 'in-use') throw thrown;
      scope.log.warn('a volume that was unmounted by force stays attached', { target: mount.target, why });
    }
  }

  return {
    bind: async (mount, volume, scope) => {
      await staging.stage(mount.source, volume.id, scope);
      if (mount.madeTarget) await mounter.makeTarget(mount.target, volume.access, scope);
      await mounter.bind(staging.path(volume.id), mount.target, { readOnly: mount.readOnly }, scope);
    },
    undo: async (mount, scope) => {
      await unmountIfOurs(mount, scope);
      if (mount.madeTarget) await mounter.removeTarget(mount.target, scope);
      await staging.unstageIfIdle(mount, scope);
      if (!clients.isNodeLocal(mount.source)) await uses.update(mount.volumeId, scope);
    },
    unmount: async (mount, scope, options) => {
      const isLast = records.mounts.byVolume(mount.volumeId).every(({ target }) => target === mount.target);
      // Flush before unmounting anything, so that a failed call can be repeated.
      if (isLast && options?.force !== true) await staging.flush(mount.source, mount.volumeId, scope);
      await unmountIfOurs(mount, scope, options);
      if (mount.madeTarget) await mounter.removeTarget(mount.target, scope);
      // If something can outlive the mount, such as a device, keep the record until it is gone, so that a repeated call can continue. The next
      // start unstages other volumes without a record.
      if (!clients.outlivesMount(mount.source)) records.mounts.remove(mount.target);
      try {
        await unstageMount(mount, scope, options);
        records.mounts.remove(mount.target);
      } finally {
        if (!clients.isNodeLocal(mount.source)) await uses.update(mount.volumeId, scope);
      }
    },
  };
}
