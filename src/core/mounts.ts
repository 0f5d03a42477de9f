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
  /** What the kernel says. */
  readonly mounted: boolean;
}

export interface UnpublishOptions extends UnstageOptions {
  /** By who knows that no container engine wants it any more. */
  readonly unheld?: boolean;
  /** As in Publishing: what is empty there goes also where nothing is on record of it, as after a power cut. */
  readonly claimTarget?: boolean;
}

export interface PublishOptions {
  readonly readOnly: boolean;
  readonly user: User | undefined;
  /** It is in a folder of ours, without a symbolic link in it: nobody has to find out where it leads before it is locked. */
  readonly ownTarget?: boolean;
  /** The path is for this mount and nothing else: it goes with it, also where it was there before. */
  readonly claimTarget?: boolean;
  /** No other host may write to it: it is refused where one does, and others are for as long as it is mounted here. */
  readonly singleNodeWriter?: boolean;
  /** Refused while another pod has it. */
  readonly singlePod?: boolean;
  /** Who is in this group shall be able to use it. Of a block device that means nothing. */
  readonly group?: number | undefined;
}

export interface Mounts {
  publish(ref: string, target: string, how: PublishOptions, call: Call): Promise<LiveMount>;
  /** Nothing mounted there is success; another volume there is 'conflict'; in use is 'in-use'. Undefined: whichever is there. */
  unpublish(target: string, volume: VolumeId | undefined, call: Call, how?: UnpublishOptions): Promise<void>;
  /**
   * Where a path leads that may be given by way of a symbolic link, as a mount there has it on record. The path itself, if it leads
   * nowhere; 'unavailable' where the disk or server it is on does not answer.
   */
  resolvePath(path: string, scope: Scope): Promise<string>;
  list(scope: Scope): Promise<readonly LiveMount[]>;
  of(volume: VolumeId, scope: Scope): Promise<readonly LiveMount[]>;
  staged(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** Every path of this node where the source of the volume, or a part of it, is mounted: ours and others', hidden ones too. */
  mountsOf(source: Source, volume: VolumeId, scope: Scope): Promise<readonly string[] | undefined>;
  /** The file system of a volume that has one of its own. Undefined: it has none. */
  filesystemOf(source: Source): string | undefined;
  /** The kernel shows it, and nobody serves it any more. */
  isDead(volume: VolumeId, scope: Scope): Promise<boolean>;
  /** Throws 'in-use', naming who uses it on this node. What other hosts use the store itself refuses to touch. */
  refuseInUse(volume: Volume, store: Store, verb: string, scope: Scope): Promise<void>;
  /** Before the volume goes away: nobody uses it, so its staged mount goes too. */
  unstageForDelete(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** Call it before an image is renamed: the record of an unfinished unmount has the old path. */
  finishUnmounts(volume: VolumeId, scope: Scope): Promise<void>;
  /** After the store enlarged the volume. */
  grow(volume: Volume, store: Store, scope: Scope): Promise<void>;
  /** Says again, on the stores, what this host uses. */
  renewUses(scope: Scope): Promise<void>;
  /** Says on the store who uses the volume, now that others do. Never throws. */
  updateUses(volume: VolumeId, scope: Scope): Promise<void>;
  mountedOn(store: string): readonly string[];
  /** Brings our records and the kernel's mount table together at start. */
  reconcile(scope: Scope): Promise<void>;
  /** Finishes the mounts and unmounts that a crash interrupted: an unmount is completed, a mount undone. */
  replay(scope: Scope): Promise<void>;
  /**
   * Mounts anew, at the same places, what the kernel still shows and nobody serves any more. Gives what could not be, and
   * that of which it could not be found out.
   */
  repair(scope: Scope): Promise<readonly VolumeId[]>;
  /** Unmounts what nobody uses, names what is still in use and leaves that working. */
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
      // The kernel knows of more than our records: binds of a target, mounts made by hand, hidden ones. Data that are
      // gone have no source, and no users but those we mounted it for.
      const source = recorded[0]?.source ?? (await store.source(volume, scope).catch(() => undefined));
      const seen = (source && (await staging.mountsOf(source, volume.id, scope))) ?? [];
      const others = seen.filter((at) => !ours.has(at));
      // Containers, asked now: one that is stopped has nothing mounted.
      const { references, silent } = await parts.references().of(volume, scope);
      const users = [
        ...usersOnRecord(recorded, references, parts.node),
        ...others.map((at) => pathUser(at, parts.node)),
      ];
      if (users.length > 0) throw volumeInUse(volume, verb, users);
      if (silent.length > 0) throw engineNotAnswering(volume, verb, silent);
      if (source !== undefined && (await staging.isServedElsewhere(source, volume.id, scope)))
        throw stillServed(volume, verb);
      // Of a use that ended and could not be taken back then, the store must not hear of it now.
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

/** What happens to the staged mount when the volume itself changes. */
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
      // A device can be attached with nothing mounted and nothing on record.
      if (!isStaged && !store.sources.some((kind) => clients.ofKind(kind).outlivesMount)) return;
      using _ = await operations.lock([stageKey(volume.id)], scope.signal);
      const mounts = records.mounts.of(volume.id);
      const asked = (): Promise<Source | undefined> =>
        isStaged ? store.source(volume, scope) : sourceLeft(volume, store, scope);
      // As it was mounted: the store may no longer have the data.
      const source = mounts[0]?.source ?? (await asked());
      if (source === undefined || (!isStaged && !clients.outlivesMount(source))) return;
      await staging.unstage(source, volume.id, scope);
      for (const mount of mounts) records.mounts.remove(mount.target);
      // Through a store that recovery has not opened yet nothing can be said: this would wait.
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

/** Returns undefined if the data are gone or unreadable: a volume on a failing disk must stay deletable. */
async function sourceLeft(volume: Volume, store: Store, scope: Scope): Promise<Source | undefined> {
  return await store.source(volume, scope).catch((thrown: unknown) => {
    scope.signal.throwIfAborted();
    const { code, message: why } = stowageError(thrown);
    if (code !== 'not-found')
      scope.log.warn('whether the image of a volume is attached could not be seen', { volume: volume.id, why });
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
      // Containers have it under other paths, where nobody here can see whether they use it.
      if (engineMounts().isHeld(mount.volumeId, mount.target)) {
        busy.push({ mount, why: 'containers use it' });
        continue;
      }
      // The same with pods, and what a kubelet has asked for is there until it wants it no more.
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
