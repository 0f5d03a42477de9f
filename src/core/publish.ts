import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Events } from './events.ts';
import { chownVolumeToGroup, createGroupRemount } from './fsgroup.ts';
import { nameKey, stageKey, targetKey, volumeKey } from './lock-keys.ts';
import type { LiveMount, Mount, NodeName, Source, User, Volume } from './model.ts';
import { requireMounting, requireNoOtherPod, requireSameMount, unmountUnfinished } from './mount-errors.ts';
import { mountDeadlineMs, mountIntent, publishMountEvent } from './mount-operations.ts';
import { isVolumeId } from './names.ts';
import type { Work } from './operation-work.ts';
import type { Call, Operations } from './operations.ts';
import type { Mounter, Records, Store } from './ports.ts';
import type { Stores } from './stores.ts';
import type { TargetBinding } from './target-binding.ts';
import type { UsePublisher } from './use-publisher.ts';
import type { VolumeStaging } from './volume-staging.ts';

const unending = new AbortController().signal;

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

export type Publish = (ref: string, target: string, options: PublishOptions, call: Call) => Promise<LiveMount>;

export interface PublishParts {
  readonly records: Records;
  readonly mounter: Mounter;
  readonly clients: Clients;
  readonly stores: () => Pick<Stores, 'use'>;
  readonly catalogue: Pick<Catalogue, 'resolve'>;
  readonly operations: Operations;
  readonly events: Events;
  readonly clock: Clock;
  readonly node: NodeName;
}

export function createPublish(
  parts: PublishParts,
  staging: VolumeStaging,
  binding: TargetBinding,
  uses: UsePublisher,
): Publish {
  const { records, clients, catalogue, operations, clock, mounter, node } = parts;
  const groupRemount = createGroupRemount(parts, staging, binding);

  /** Asks the store only if the source can change while the volume is staged. */
  async function sourceOf(volume: Volume, store: Store, scope: Scope): Promise<Source> {
    const [first] = records.mounts.byVolume(volume.id);
    if (first === undefined || !clients.isFixedWhileStaged(first.source)) return await store.source(volume, scope);
    return (await staging.isStaged(volume.id, scope)) ? first.source : await store.source(volume, scope);
  }

  /** The source to share with existing mounts of the volume. */
  async function sourceToShare(volume: Volume, newSource: Source, scope: Scope): Promise<Source> {
    const mounts = clients.find(newSource)?.sharing !== undefined ? records.mounts.byVolume(volume.id) : [];
    const [first] = mounts;
    if (first === undefined || !(await staging.isStaged(volume.id, scope))) return newSource;
    const isDead = (await staging.findDead(mounts, scope)).length > 0;
    return isDead
      ? clients.remountSource(first.source, newSource)
      : clients.sharedSource(volume, newSource, first.source, scope.log);
  }

  async function mountVolume(
    mount: Mount,
    volume: Volume,
    store: Store,
    options: PublishOptions,
    expectedUser: Disposable,
    work: Work,
  ): Promise<void> {
    try {
      await store.markUsed?.(volume, work);
      await uses.publish(volume, store, work, options.singleNodeWriter === true ? 'writer' : 'user');
      await chownVolumeToGroup(store, volume, mount, options.group, work);
      await binding.bind(mount, volume, work);
    } catch (thrown) {
      // The caller's scope may have been aborted, so undo with a deadline of its own.
      using limit = clock.deadline(mountDeadlineMs, unending);
      // Remove the pending user first, so that the undo publishes the use record without it.
      expectedUser[Symbol.dispose]();
      await binding
        .undo(mount, { ...work, signal: limit.signal })
        .catch((cause: unknown) => logLeftover(work.log, mount, cause));
      throw thrown;
    }
  }

  const publish: Publish = async (ref, requestedTarget, options, call) => {
    // Resolve recorded volumes only once, below with the locks held: on a shared store each lookup takes several calls.
    const recorded = isVolumeId(ref) ? records.volumes.byId(ref) : undefined;
    const unlockedVolume = recorded ?? (await catalogue.resolve(ref, call));
    // Report unmountable sources first: if mounting is impossible, permission to mount would not help.
    if (mounter.unable !== undefined)
      await parts
        .stores()
        .use(unlockedVolume.store, async (store) => staging.validate(await store.source(unlockedVolume, call)));
    requireMounting(mounter);
    const resolveTarget = async (): Promise<string> =>
      (await mounter.inspectTarget(requestedTarget, unlockedVolume.access, call)).target;
    const target = options.ownTarget === true ? requestedTarget : await resolveTarget();
    const published = await parts.stores().use(unlockedVolume.store, async (store, config) => {
      using _ = await operations.lock(
        [volumeKey(unlockedVolume.id), nameKey(unlockedVolume.store, unlockedVolume.name)],
        call.signal,
      );
      using _mount = await operations.lock([stageKey(unlockedVolume.id), targetKey(target)], call.signal);
      const volume = await catalogue.resolve(unlockedVolume.id, call);
      // Another host renamed the volume, so the locks are for the wrong name: start again.
      if (volume.name !== unlockedVolume.name || volume.store !== unlockedVolume.store) return undefined;
      const readOnly = options.readOnly || config.policy.readOnly;
      const [present] = await staging.withKernelState([records.mounts.byTarget(target)].filter(isDefined), call);
      if (present?.mounted) {
        requireSameMount(present, volume, readOnly);
        return present;
      }
      // The record is stale: the target was unmounted by somebody else, or an earlier unmount failed half-way.
      using _present = present && removeStaleRecord(parts, present, volume);
      if (options.singlePod === true) requireNoOtherPod(volume, records.mounts.byVolume(volume.id));
      // Inspect again with the lock held: a concurrent unmount may have removed the target that it created.
      const { existed } = await mounter.inspectTarget(target, volume.access, call);
      const user = options.user ?? { kind: 'path', name: target, node };
      const use = { readOnly, group: options.group };
      const newSource = clients.withMountOptions(await sourceOf(volume, store, call), use);
      if (!readOnly) await store.checkWritable?.(newSource, call);
      const unboundMounts = await groupRemount.unbindForGroup(volume, newSource, call);
      const source = await sourceToShare(volume, newSource, call);
      // A target that we created is still ours after somebody else unmounted it.
      const madeTarget = !existed || options.claimTarget === true || present?.madeTarget === true;
      const about = { volumeId: volume.id, source, target, readOnly, user };
      const mount: Mount = { ...about, since: clock.now(), madeTarget };
      const intent = { ...mountIntent('volume.mount', parts, mount), store: volume.store };
      using expectedUser = uses.expectUser(volume.id, user);
      return await operations.run(intent, call, async (work) => {
        await mountVolume(mount, volume, store, options, expectedUser, work);
        await groupRemount.rebind(unboundMounts, source, work);
        return {
          value: { ...mount, mounted: true },
          record: () => records.mounts.put(mount),
          announce: () => publishMountEvent(parts, 'mounted', mount),
        };
      });
    });
    return published ?? (await publish(unlockedVolume.id, requestedTarget, options, call));
  };
  return publish;
}

/**
 * Removes the record of a stale mount. If something can outlive the mount, such as an attached device, disposing restores the record unless a
 * new one replaced it.
 */
function removeStaleRecord(
  { records, clients }: Pick<PublishParts, 'records' | 'clients'>,
  staleMount: LiveMount,
  volume: Volume,
): Disposable | undefined {
  const { mounted: _, ...mount } = staleMount;
  const outlivesMount = clients.outlivesMount(mount.source);
  if (outlivesMount && mount.volumeId !== volume.id) throw unmountUnfinished(mount.target);
  records.mounts.remove(mount.target);
  if (!outlivesMount) return undefined;
  return {
    [Symbol.dispose]: () => {
      if (records.mounts.byTarget(mount.target) === undefined) records.mounts.put(mount);
    },
  };
}

const isDefined = <T>(value: T | undefined): value is T => value !== undefined;

function logLeftover(log: Log, mount: Mount, cause: unknown): void {
  log.warn('a failed mount is cleaned up at the next start', {
    target: mount.target,
    why: stowageError(cause).message,
  });
}
