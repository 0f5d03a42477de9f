import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { waitWithGrace } from '#base/wait.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Mount } from './model.ts';
import type { Mounter, Records } from './ports.ts';
import { type VolumeStaging, volumesUnderRepair } from './volume-staging.ts';

/** The timeout for unstaging all volumes together. */
const unstageTimeoutMs = 10_000;

/** At start: makes our records match the kernel's mount table. */
export type ReconcileMounts = (scope: Scope) => Promise<void>;

export interface ReconcileMountsParts {
  readonly records: Pick<Records, 'mounts' | 'settings'>;
  readonly mounter: Mounter;
  readonly clients: Pick<Clients, 'outlivesMount'>;
  readonly mountsFolder: string;
  readonly clock: Clock;
  readonly log: Log;
}

export function createReconcileMounts(parts: ReconcileMountsParts, staging: VolumeStaging): ReconcileMounts {
  const { records, mounter, clients, log, clock } = parts;

  /**
   * A device that is in use stays attached after its staged mount is gone. Keep the record then, so that a repeated unmount can detach the
   * device: `reap` removes only the staged mount.
   */
  async function tryUnstage(mount: Mount, scope: Scope): Promise<boolean> {
    if (!clients.outlivesMount(mount.source)) return true;
    try {
      scope.signal.throwIfAborted();
      await waitWithGrace(staging.unstageIfIdle(mount, scope), scope.signal, clock);
      return true;
    } catch (thrown) {
      const { message: why, action } = stowageError(thrown);
      log.warn('a volume that is not mounted any more could not be unstaged', { target: mount.target, why, action });
      return false;
    }
  }

  return async (scope) => {
    // A disk that does not answer must not delay the start.
    using limit = clock.deadline(unstageTimeoutMs, scope.signal);
    for (const mount of await staging.withKernelState(records.mounts.list(), scope)) {
      // A crash interrupted the repair of this mount; `repair` finishes it.
      if (mount.mounted || volumesUnderRepair(records).includes(mount.volumeId)) continue;
      log.info('mount is gone', { volume: mount.volumeId, target: mount.target });
      if (mounter.unable === undefined && !(await tryUnstage(mount, { ...scope, signal: limit.signal }))) continue;
      records.mounts.remove(mount.target);
      if (mount.madeTarget && mounter.unable === undefined)
        await mounter.removeTarget(mount.target, scope).catch(() => undefined);
    }
    if (mounter.unable !== undefined) return;
    const mountedVolumes = new Set(records.mounts.list().map((mount) => mount.volumeId));
    const released = await mounter.reap(parts.mountsFolder, mountedVolumes, scope);
    for (const path of released) log.info('released a leftover mount or device', { what: path });
  };
}
