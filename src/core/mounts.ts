import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import type { ContainerReferences } from './container-references.ts';
import type { EngineMounts } from './engine-mounts.ts';
import { stowageError } from './errors.ts';
import type { Events } from './events.ts';
import { stageKey } from './lock-keys.ts';
import type { Mount, NodeName, Source, User, Volume, VolumeId } from './model.ts';
import { engineNotAnswering, stillServed, volumeInUse } from './mount-errors.ts';
import { createMountPathResolver } from './mount-path.ts';
import type { Call, Operations } from './operations.ts';
import type { Store, UnstageOptions } from './ports.ts';
import {
  createPublish,
  createReplay,
  createTargetBinding,
  createUnpublish,
  type TargetBinding,
  volumeTitle,
} from './publishing.ts';
import { createReconcileMounts } from './reconcile-mounts.ts';
import { createRepairMounts } from './repair-mounts.ts';
import type { Stores } from './stores.ts';
import { createUsePublisher, type UsePublisher } from './use-publisher.ts';
import { createVolumeStaging, type VolumeStaging, type VolumeStagingParts } from './volume-staging.ts';
import { usersOnRecord } from './volume-users.ts';

export interface LiveMount extends Mount {
  /** According to the kernel's mount table. */
  readonly mounted: boolean;
}

export interface UnpublishOptions extends UnstageOptions {
  /** The caller knows that no container engine needs the mount any more. */
  readonly unheld?: boolean;
  /** As in PublishOptions: also removes an empty target that has no record, such as after a power cut. */
  readonly claimTarget?: boolean;
}

export interface PublishOptions {
  readonly readOnly: boolean;
  readonly user: User | undefined;
  /** The target is in a folder of Stowage and has no symbolic links, so it need not be resolved before it is locked. */
  readonly ownTarget?: boolean;
  /** The target belongs to this mount alone: unmounting removes it even if it existed before. */
  readonly claimTarget?: boolean;
  /** Fail if another host has the volume for writing, and keep other hosts from writing while it is mounted here. */
  readonly singleNodeWriter?: boolean;
  /** Fail while another pod uses the volume. */
  readonly singlePod?: boolean;
  /** Members of this group must be able to use the volume. Ignored for block devices. */
  readonly group?: number | undefined;
}

export interface Mounts {
  publish(ref: string, target: string, how: PublishOptions, call: Call): Promise<LiveMount>;
  /** Nothing mounted is success; another volume at the target is 'conflict'; in use is 'in-use'. `volume` undefined: any volume. */
  unpublish(target: string, volume: VolumeId | undefined, call: Call, how?: UnpublishOptions): Promise<void>;
  /**
   * Resolves symbolic links in a target path, as mounts are recorded. Returns the path itself if it does not exist; 'unavailable' if its
   * disk or server does not answer.
   */
  resolvePath(path: string, scope: Scope): Promise<string>;
  list(scope: Scope): Promise<readonly LiveMount[]>;
  of(volume: VolumeId, scope: Scope): Promise<readonly LiveMount[]>;
  staged(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** Every path on this node where the volume's source, or a part of it, is mounted, by any program, including hidden mounts. */
  mountsOf(source: Source, volume: VolumeId, scope: Scope): Promise<readonly string[] | undefined>;
  /** The volume's own file system. Undefined: it has none. */
  filesystemOf(source: Source): string | undefined;
  /** The mount table shows the volume, but no process serves it. */
  isDead(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** Throws 'in-use' with the users on this node. The store itself refuses volumes that other hosts use. */
  refuseInUse(volume: Volume, store: Store, verb: string, scope: Scope): Promise<void>;
  /** Unstages a volume that is about to be deleted. Call it after `refuseInUse`. */
  unstageForDelete(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** Call it before renaming an image, since the record of an unfinished unmount has the old path. */
  finishUnmounts(volume: VolumeId, scope: Scope): Promise<void>;
  /** Grows the file system. Call it after the store enlarged the volume. */
  grow(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** Renews this host's use records on the stores. */
  renewUses(scope: Scope): Promise<void>;
  /** Updates the volume's use record after its users changed. Never throws. */
  updateUses(volume: VolumeId, scope: Scope): Promise<void>;
  mountedOn(store: string): readonly string[];
  /** At start: makes our records match the kernel's mount table. */
  reconcile(scope: Scope): Promise<void>;
  /** Replays operations that a crash interrupted: completes unmounts, undoes mounts. */
  replay(scope: Scope): Promise<void>;
  /**
   * Remounts dead mounts at the same targets. Returns the volumes that could not be repaired, or whose state could not be
   * determined.
   */
  repair(scope: Scope): Promise<readonly VolumeId[]>;
  /** Unmounts idle volumes. Leaves volumes that are in use mounted, and returns them. */
  unmountIdle(scope: Scope): Promise<{
    readonly unmounted: number;
    readonly inUse: readonly { readonly mount: Mount; readonly why: string }[];
  }>;
}

export interface MountParts extends VolumeStagingParts {
  readonly stores: () => Stores;
  readonly catalogue: Catalogue;
  readonly operations: Operations;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
  readonly node: NodeName;
  readonly instance: string;
  readonly engineMounts: () => Pick<EngineMounts, 'isHeld'>;
  readonly references: () => Pick<ContainerReferences, 'of'>;
}

export function createMounts(parts: MountParts): Mounts {
  const { records, log } = parts;
  const staging = createVolumeStaging(parts);
  const uses = createUsePublisher(parts);
  const binding = createTargetBinding(parts, staging, uses);
  return {
    publish: createPublish(parts, staging, binding, uses),
    unpublish: createUnpublish(parts, binding),
    resolvePath: createMountPathResolver(parts),
    list: (scope) => staging.withKernelState(records.mounts.list(), scope),
    of: (volume, scope) => staging.withKernelState(records.mounts.of(volume), scope),
    staged: staging.isStaged,
    mountsOf: staging.mountsOf,
    filesystemOf: parts.clients.filesystemOf,
    isDead: async (volume, scope) => (await staging.dead(records.mounts.of(volume), scope)).length > 0,
    refuseInUse: async (volume, store, verb, scope) => {
      const recorded = (await staging.withKernelState(records.mounts.of(volume.id), scope)).filter(
        (mount) => mount.mounted,
      );
      const ours = new Set([staging.path(volume.id), ...recorded.map((mount) => mount.target)]);
      // The mount table has more than our records: bind mounts of a target, manual mounts, hidden mounts. If the data is
      // gone, the volume has no source, and no users except those on record.
      const source = recorded[0]?.source ?? (await store.source(volume, scope).catch(() => undefined));
      const seen = (source && (await staging.mountsOf(source, volume.id, scope))) ?? [];
      const others = seen.filter((at) => !ours.has(at));
      // Ask the engines now: stopped containers have nothing mounted, so the mount table does not show them.
      const { references, silent } = await parts.references().of(volume, scope);
      const users = [
        ...usersOnRecord(recorded, references, parts.node),
        ...others.map((at) => pathUser(at, parts.node)),
      ];
      if (users.length > 0) throw volumeInUse(volume, verb, users);
      if (silent.length > 0) throw engineNotAnswering(volume, verb, silent);
      if (source !== undefined && (await staging.isServedElsewhere(source, volume.id, scope)))
        throw stillServed(volume, verb);
      // Remove an outdated use record first, or the store would refuse the change because of this host.
      await uses.end(volume, store, scope);
    },
    mountedOn: (store) =>
      records.mounts
        .list()
        .filter((mount) => records.volumes.byId(mount.volumeId)?.store === store)
        .map((mount) => volumeTitle(parts, mount.volumeId)),
    ...createVolumeChanges(parts, staging, uses),
    reconcile: createReconcileMounts(parts, staging),
    replay: createReplay(parts, binding),
    repair: createRepairMounts(parts, staging),
    renewUses: uses.renew,
    updateUses: uses.update,
    unmountIdle: createUnmountIdle(parts, binding, log),
  };
}

/** The methods that keep the staged mount in step with changes of the volume. */
function createVolumeChanges(
  parts: MountParts,
  staging: VolumeStaging,
  uses: UsePublisher,
): Pick<Mounts, 'unstageForDelete' | 'finishUnmounts' | 'grow'> {
  const { records, operations, mounter, clients } = parts;
  return {
    unstageForDelete: async (volume, store, scope) => {
      if (mounter.unable !== undefined) return;
      const recorded = records.mounts.of(volume.id).length > 0;
      const isStaged = recorded || (await staging.isStaged(volume.id, scope));
      // A device can be attached even if nothing is mounted or recorded.
      if (!isStaged && !store.sources.some((kind) => clients.ofKind(kind).outlivesMount)) return;
      using _ = await operations.lock([stageKey(volume.id)], scope.signal);
      const mounts = records.mounts.of(volume.id);
      const asked = (): Promise<Source | undefined> =>
        isStaged ? store.source(volume, scope) : sourceLeft(volume, store, scope);
      // Prefer the recorded source: the store may no longer have the data.
      const source = mounts[0]?.source ?? (await asked());
      if (source === undefined || (!isStaged && !clients.outlivesMount(source))) return;
      await staging.unstage(source, volume.id, scope);
      for (const mount of mounts) records.mounts.remove(mount.target);
      // Skip node-local volumes: they have no use records, and during recovery this would wait for the store to open.
      if (!clients.isNodeLocal(source)) await uses.update(volume.id, scope);
    },
    finishUnmounts: async (id, scope) => {
      if (mounter.unable !== undefined) return;
      using _ = await operations.lock([stageKey(id)], scope.signal);
      for (const mount of await staging.withKernelState(records.mounts.of(id), scope)) {
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
async function sourceLeft(volume: Volume, store: Store, scope: Scope): Promise<Source | undefined> {
  return await store.source(volume, scope).catch((thrown: unknown) => {
    scope.signal.throwIfAborted();
    const { code, message: why } = stowageError(thrown);
    if (code !== 'not-found')
      scope.log.warn('it is unknown whether the image of a volume is attached', { volume: volume.id, why });
    return undefined;
  });
}

const pathUser = (at: string, node: NodeName): User => ({ kind: 'path', name: at, node });

function createUnmountIdle(
  { records, mounter, engineMounts }: MountParts,
  binding: TargetBinding,
  log: Log,
): Mounts['unmountIdle'] {
  return async (scope) => {
    const busy: { mount: Mount; why: string }[] = [];
    let unmounted = 0;
    for (const mount of mounter.unable === undefined ? records.mounts.list() : []) {
      // Containers have the volume at other paths, so Stowage cannot see whether they use it.
      if (engineMounts().isHeld(mount.volumeId, mount.target)) {
        busy.push({ mount, why: 'containers use it' });
        continue;
      }
      // The same goes for pods. A kubelet's staged mount stays until the kubelet unstages it.
      if (mount.user.kind === 'pod' || mount.user.kind === 'kubelet') {
        busy.push({ mount, why: `${mount.user.kind} ${mount.user.name} uses it` });
        continue;
      }
      try {
        await binding.takeDown(mount, scope);
        unmounted++;
      } catch (thrown) {
        const why = stowageError(thrown).message;
        log.info('mount stays', { target: mount.target, why });
        busy.push({ mount, why });
      }
    }
    return { unmounted, inUse: busy };
  };
}
