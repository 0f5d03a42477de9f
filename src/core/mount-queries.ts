import type { Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import type { LiveMount, Source, VolumeId } from './model.ts';
import { volumeTitle } from './mount-operations.ts';
import type { Records } from './ports.ts';
import type { VolumeStaging } from './volume-staging.ts';

/** Questions about the mounts of this node. */
export interface MountQueries {
  list(scope: Scope): Promise<readonly LiveMount[]>;
  ofVolume(volume: VolumeId, scope: Scope): Promise<readonly LiveMount[]>;
  isStaged(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** Every path on this node where the volume's source, or a part of it, is mounted, by any program, including hidden mounts. */
  mountsOf(source: Source, volume: VolumeId, scope: Scope): Promise<readonly string[] | undefined>;
  /** The volume's own file system. Undefined: it has none. */
  filesystemOf(source: Source): string | undefined;
  /** The mount table shows the volume, but no process serves it. */
  isDead(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** The volumes of the store that are mounted, as `store/name`. */
  mountedVolumesOf(store: string): readonly string[];
}

export interface MountQueriesParts {
  readonly records: Pick<Records, 'mounts' | 'volumes'>;
  readonly clients: Pick<Clients, 'filesystemOf'>;
}

export function createMountQueries({ records, clients }: MountQueriesParts, staging: VolumeStaging): MountQueries {
  return {
    list: (scope) => staging.withKernelState(records.mounts.list(), scope),
    ofVolume: (volume, scope) => staging.withKernelState(records.mounts.byVolume(volume), scope),
    isStaged: staging.isStaged,
    mountsOf: staging.mountsOf,
    filesystemOf: clients.filesystemOf,
    isDead: async (volume, scope) => (await staging.findDead(records.mounts.byVolume(volume), scope)).length > 0,
    mountedVolumesOf: (store) =>
      records.mounts
        .list()
        .filter((mount) => records.volumes.byId(mount.volumeId)?.store === store)
        .map((mount) => volumeTitle({ records }, mount.volumeId)),
  };
}
