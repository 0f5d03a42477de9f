import type { Log, Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { VolumeId } from './model.ts';
import type { MountQueries } from './mount-queries.ts';
import type { Call } from './operations.ts';
import type { Records } from './ports.ts';
import type { Unpublish } from './unpublish.ts';

/** Where volumes are published for container engines: one target per volume, for all its engine mounts. */
export interface EngineTargets {
  targetOf(id: VolumeId): string;
  /** Undefined: the volume is not published for engines. */
  pathOf(id: VolumeId): string | undefined;
  /** Call it with the lock held. False: still mounted. */
  tryUnpublish(id: VolumeId, call: Call): Promise<boolean>;
  /** True if this mount namespace has bind mounts of the volume that we did not make. */
  isBoundElsewhere(id: VolumeId, scope: Scope): Promise<boolean>;
}

export interface EngineTargetsParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly mounts: () => Pick<MountQueries, 'mountsOf'> & { readonly unpublish: Unpublish };
  /** Volumes are published for engines at `<folder>/<volume id>`. */
  readonly folder: string;
  readonly stagingPathOf: (volume: VolumeId) => string;
  readonly log: Log;
}

export function createEngineTargets({
  records,
  mounts,
  folder,
  stagingPathOf,
  log,
}: EngineTargetsParts): EngineTargets {
  const targetOf = (id: VolumeId): string => `${folder}/${id}`;
  const pathOf = (id: VolumeId): string | undefined => records.mounts.byTarget(targetOf(id))?.target;

  async function tryUnpublish(id: VolumeId, call: Call): Promise<boolean> {
    if (pathOf(id) === undefined) return true;
    try {
      await mounts().unpublish(targetOf(id), id, call, { force: false, ignoreEngineMounts: true });
      return true;
    } catch (thrown) {
      call.signal.throwIfAborted();
      // The engine does not retry. The mount stays until the written data, now in the keeper's memory, is on the server.
      const { message } = stowageError(thrown);
      log.warn('a volume that no container uses stays mounted for now', { volume: id, why: message });
      return false;
    }
  }

  async function isBoundElsewhere(id: VolumeId, scope: Scope): Promise<boolean> {
    const mount = records.mounts.byTarget(targetOf(id));
    if (mount === undefined) return false;
    const ourPaths = new Set([stagingPathOf(id), ...records.mounts.byVolume(id).map(({ target }) => target)]);
    const mountPaths = await mounts().mountsOf(mount.source, id, scope);
    // Keep the mount if its source kind is unknown: no client can tell where it is bound.
    return mountPaths === undefined || mountPaths.some((at) => !ourPaths.has(at));
  }

  return { targetOf, pathOf, tryUnpublish, isBoundElsewhere };
}
