import type { Scope } from '#base/log.ts';
import type { ContainerReferences } from './container-references.ts';
import type { NodeName, User, Volume } from './model.ts';
import { engineNotAnswering, stillServed, volumeInUse } from './mount-errors.ts';
import type { Records, Store } from './ports.ts';
import type { UsePublisher } from './use-publisher.ts';
import type { VolumeStaging } from './volume-staging.ts';
import { usersOnRecord } from './volume-users.ts';

export interface InUseCheck {
  /** Throws 'in-use' with the users on this node. The store itself refuses volumes that other hosts use. */
  refuseInUse(volume: Volume, store: Store, verb: string, scope: Scope): Promise<void>;
}

export interface InUseCheckParts {
  readonly records: Pick<Records, 'mounts'>;
  readonly references: () => Pick<ContainerReferences, 'query'>;
  readonly node: NodeName;
}

export function createInUseCheck(
  { records, references, node }: InUseCheckParts,
  staging: VolumeStaging,
  uses: Pick<UsePublisher, 'removeIfUnused'>,
): InUseCheck {
  return {
    refuseInUse: async (volume, store, verb, scope) => {
      const recorded = (await staging.withKernelState(records.mounts.byVolume(volume.id), scope)).filter(
        (mount) => mount.mounted,
      );
      const ourPaths = new Set([staging.path(volume.id), ...recorded.map((mount) => mount.target)]);
      // The mount table has more than our records: bind mounts of a target, manual mounts, hidden mounts. If the data is
      // gone, the volume has no source, and no users except those on record.
      const source = recorded[0]?.source ?? (await store.source(volume, scope).catch(() => undefined));
      const mountPaths = (source && (await staging.mountsOf(source, volume.id, scope))) ?? [];
      const foreignPaths = mountPaths.filter((at) => !ourPaths.has(at));
      // Ask the engines now: stopped containers have nothing mounted, so the mount table does not show them.
      const { references: containers, silent } = await references().query(volume, scope);
      const users = [...usersOnRecord(recorded, containers, node), ...foreignPaths.map((at) => pathUser(at, node))];
      if (users.length > 0) throw volumeInUse(volume, verb, users);
      if (silent.length > 0) throw engineNotAnswering(volume, verb, silent);
      if (source !== undefined && (await staging.isServedElsewhere(source, volume.id, scope)))
        throw stillServed(volume, verb);
      // Remove an outdated use record first, or the store would refuse the change because of this host.
      await uses.removeIfUnused(volume, store, scope);
    },
  };
}

const pathUser = (path: string, node: NodeName): User => ({ kind: 'path', name: path, node });
