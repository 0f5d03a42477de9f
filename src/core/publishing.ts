import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import { createClearTarget } from './clear-target.ts';
import { stowageError } from './errors.ts';
import { chownVolumeToGroup, createGroupRemount } from './fsgroup.ts';
import { nameKey, stageKey, targetKey, volumeKey } from './lock-keys.ts';
import type { LiveMount, Mount, Operation, Source, Volume, VolumeId } from './model.ts';
import {
  heldByContainers,
  otherVolumeMounted,
  requireMounting,
  requireNoOtherPod,
  requireSameMount,
  unmountUnfinished,
} from './mount-errors.ts';
import { createMountPathResolver } from './mount-path.ts';
import type { MountParts, Mounts, PublishOptions } from './mounts.ts';
import { isVolumeId } from './names.ts';
import type { Work } from './operation-work.ts';
import type { Call } from './operations.ts';
import type { Store, UnstageOptions } from './ports.ts';
import type { UsePublisher } from './use-publisher.ts';
import { isOurMount, type VolumeStaging } from './volume-staging.ts';

const mountDeadlineMs = 60_000;
const inParallel = 8;
const unending = new AbortController().signal;

/** Binds a staged volume to a target and undoes that. All methods are idempotent. Call them with the locks held. */
export interface TargetBinding {
  bind(mount: Mount, volume: Volume, scope: Scope): Promise<void>;
  /** Undoes whatever an interrupted `bind` did, and nothing else. */
  undo(mount: Mount, scope: Scope): Promise<void>;
  takeDown(mount: Mount, scope: Scope, how?: UnstageOptions): Promise<void>;
}

export function createTargetBinding(
  { records, mounter, clients }: MountParts,
  staging: VolumeStaging,
  uses: UsePublisher,
): TargetBinding {
  async function unmountOurs(mount: Mount, scope: Scope, how?: UnstageOptions): Promise<void> {
    const table = await mounter.list(scope);
    const ours = isOurMount(table, staging.path(mount.volumeId), mount);
    if (ours && how?.force === true) await mounter.detach(mount.target, scope);
    else if (ours) await mounter.unmount(mount.target, scope);
    else if (table.some((point) => point.at === mount.target))
      scope.log.warn('something else is mounted there now, and is left alone', { target: mount.target });
  }

  /** With force, a device that is still in use stays attached. The next start, or deleting the volume, detaches it. */
  async function unstageOf(mount: Mount, scope: Scope, how?: UnstageOptions): Promise<void> {
    try {
      await staging.unstageIfIdle(mount, scope, how);
    } catch (thrown) {
      const { code, message: why } = stowageError(thrown);
      if (how?.force !== true || code !== 'in-use') throw thrown;
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
      await unmountOurs(mount, scope);
      if (mount.madeTarget) await mounter.removeTarget(mount.target, scope);
      await staging.unstageIfIdle(mount, scope);
      if (!clients.isNodeLocal(mount.source)) await uses.update(mount.volumeId, scope);
    },
    takeDown: async (mount, scope, how) => {
      const isLast = records.mounts.of(mount.volumeId).every(({ target }) => target === mount.target);
      // Flush before unmounting anything, so that a failed call can be repeated.
      if (isLast && how?.force !== true) await staging.flush(mount.source, mount.volumeId, scope);
      await unmountOurs(mount, scope, how);
      if (mount.madeTarget) await mounter.removeTarget(mount.target, scope);
      // If something can outlive the mount, such as a device, keep the record until it is gone, so that a repeated call can continue. The next
      // start unstages other volumes without a record.
      if (!clients.outlivesMount(mount.source)) records.mounts.remove(mount.target);
      try {
        await unstageOf(mount, scope, how);
        records.mounts.remove(mount.target);
      } finally {
        if (!clients.isNodeLocal(mount.source)) await uses.update(mount.volumeId, scope);
      }
    },
  };
}

/** `store/name`, or the id if the volume is no longer on record. */
export function volumeTitle({ records }: Pick<MountParts, 'records'>, id: VolumeId): string {
  const volume = records.volumes.byId(id);
  return volume === undefined ? id : `${volume.store}/${volume.name}`;
}

function tell({ events, records }: MountParts, type: 'mounted' | 'unmounted', mount: Mount): void {
  const store = records.volumes.byId(mount.volumeId)?.store;
  events.publish(`mount.${type}`, mount.target, store, { volume: mount.volumeId, target: mount.target });
}

export function createPublish(
  parts: MountParts,
  staging: VolumeStaging,
  binding: TargetBinding,
  uses: UsePublisher,
): Mounts['publish'] {
  const { records, clients, catalogue, operations, clock, mounter, node } = parts;
  const regrouping = createGroupRemount(parts, staging, binding);

  /** Asks the store only if the source can change while the volume is staged. */
  async function sourceOf(volume: Volume, store: Store, scope: Scope): Promise<Source> {
    const [first] = records.mounts.of(volume.id);
    if (first === undefined || !clients.isFixedWhileStaged(first.source)) return await store.source(volume, scope);
    return (await staging.isStaged(volume.id, scope)) ? first.source : await store.source(volume, scope);
  }

  /** The source to share with existing mounts of the volume. */
  async function shared(volume: Volume, found: Source, scope: Scope): Promise<Source> {
    const mounts = clients.find(found)?.sharing !== undefined ? records.mounts.of(volume.id) : [];
    const [first] = mounts;
    if (first === undefined || !(await staging.isStaged(volume.id, scope))) return found;
    const isDead = (await staging.dead(mounts, scope)).length > 0;
    return isDead ? clients.replace(first.source, found) : clients.join(volume, found, first.source, scope.log);
  }

  async function perform(
    mount: Mount,
    volume: Volume,
    store: Store,
    how: PublishOptions,
    coming: Disposable,
    work: Work,
  ): Promise<void> {
    try {
      await store.noteUse?.(volume, work);
      await uses.publish(volume, store, work, how.singleNodeWriter === true ? 'writer' : 'user');
      await chownVolumeToGroup(store, volume, mount, how.group, work);
      await binding.bind(mount, volume, work);
    } catch (thrown) {
      // The caller's scope may have been aborted, so undo with a deadline of its own.
      using limit = clock.deadline(mountDeadlineMs, unending);
      // Remove the pending user first, so that the undo publishes the use record without it.
      coming[Symbol.dispose]();
      await binding
        .undo(mount, { ...work, signal: limit.signal })
        .catch((cause: unknown) => leftBehind(work.log, mount, cause));
      throw thrown;
    }
  }

  const publish: Mounts['publish'] = async (ref, wanted, how, call) => {
    // Resolve recorded volumes only once, below with the locks held: on a shared store each lookup takes several calls.
    const recorded = isVolumeId(ref) ? records.volumes.byId(ref) : undefined;
    const before = recorded ?? (await catalogue.resolve(ref, call));
    // Report unmountable sources first: if mounting is impossible, permission to mount would not help.
    if (mounter.unable !== undefined)
      await parts.stores().use(before.store, async (store) => staging.refuse(await store.source(before, call)));
    requireMounting(mounter);
    const resolved = async (): Promise<string> => (await mounter.inspectTarget(wanted, before.access, call)).target;
    const target = how.ownTarget === true ? wanted : await resolved();
    const published = await parts.stores().use(before.store, async (store, config) => {
      using _ = await operations.lock([volumeKey(before.id), nameKey(before.store, before.name)], call.signal);
      using _mount = await operations.lock([stageKey(before.id), targetKey(target)], call.signal);
      const volume = await catalogue.resolve(before.id, call);
      // Another host renamed the volume, so the locks are for the wrong name: start again.
      if (volume.name !== before.name || volume.store !== before.store) return undefined;
      const readOnly = how.readOnly || config.policy.readOnly;
      const [present] = await staging.withKernelState([records.mounts.at(target)].filter(isThere), call);
      if (present?.mounted) {
        requireSameMount(present, volume, readOnly);
        return present;
      }
      // The record is stale: the target was unmounted by somebody else, or an earlier unmount failed half-way.
      using _present = present && setAside(parts, present, volume);
      if (how.singlePod === true) requireNoOtherPod(volume, records.mounts.of(volume.id));
      // Inspect again with the lock held: a concurrent unmount may have removed the target that it created.
      const { existed } = await mounter.inspectTarget(target, volume.access, call);
      const user = how.user ?? { kind: 'path', name: target, node };
      const use = { readOnly, group: how.group };
      const found = clients.withMountOptions(await sourceOf(volume, store, call), use);
      if (!readOnly) await store.usable?.(found, call);
      const again = await regrouping.unbindForGroup(volume, found, call);
      const source = await shared(volume, found, call);
      // A target that we created is still ours after somebody else unmounted it.
      const madeTarget = !existed || how.claimTarget === true || present?.madeTarget === true;
      const about = { volumeId: volume.id, source, target, readOnly, user };
      const mount: Mount = { ...about, since: clock.now(), madeTarget };
      const intent = { ...intended('volume.mount', parts, mount), store: volume.store };
      using coming = uses.expectUser(volume.id, user);
      return await operations.run(intent, call, async (work) => {
        await perform(mount, volume, store, how, coming, work);
        await regrouping.rebind(again, source, work);
        return {
          value: { ...mount, mounted: true },
          record: () => records.mounts.put(mount),
          announce: () => tell(parts, 'mounted', mount),
        };
      });
    });
    return published ?? (await publish(before.id, wanted, how, call));
  };
  return publish;
}

/**
 * Removes the record of a stale mount. If something can outlive the mount, such as an attached device, disposing restores the record unless a
 * new one replaced it.
 */
function setAside({ records, clients }: MountParts, present: LiveMount, volume: Volume): Disposable | undefined {
  const { mounted: _, ...mount } = present;
  const outlivesMount = clients.outlivesMount(mount.source);
  if (outlivesMount && mount.volumeId !== volume.id) throw unmountUnfinished(mount.target);
  records.mounts.remove(mount.target);
  if (!outlivesMount) return undefined;
  return {
    [Symbol.dispose]: () => {
      if (records.mounts.at(mount.target) === undefined) records.mounts.put(mount);
    },
  };
}

const isThere = <T>(value: T | undefined): value is T => value !== undefined;

const intended = (kind: 'volume.mount' | 'volume.unmount', parts: MountParts, mount: Mount) => ({
  kind,
  subject: volumeTitle(parts, mount.volumeId),
  params: { mount },
  deadlineMs: mountDeadlineMs,
});

function leftBehind(log: Log, mount: Mount, cause: unknown): void {
  log.warn('a failed mount is cleaned up at the next start', {
    target: mount.target,
    why: stowageError(cause).message,
  });
}

export function createUnpublish(parts: MountParts, binding: TargetBinding): Mounts['unpublish'] {
  const { records, operations, mounter } = parts;
  const locate = createMountPathResolver(parts);
  const clear = createClearTarget(parts);
  /** The volume at the target, after waiting for a mount that is in progress. */
  async function volumeAt(target: string, call: Call): Promise<VolumeId | undefined> {
    using _ = await operations.lock([targetKey(target)], call.signal);
    return records.mounts.at(target)?.volumeId;
  }

  return async (path, wanted, call, how) => {
    const given = path.length > 1 ? path.replace(/\/+$/, '') : path;
    const isRecorded = (at: string): boolean => {
      const there = records.mounts.at(at)?.volumeId;
      return there !== undefined && (wanted === undefined || there === wanted);
    };
    const target = isRecorded(given) ? given : await locate(given, call);
    const volume = wanted ?? (await volumeAt(target, call));
    // Lock before checking: a mount in progress must not appear after we reported that nothing is mounted.
    const stage = volume === undefined ? [] : [stageKey(volume)];
    using _ = await operations.lock([...stage, targetKey(target)], call.signal);
    const mount = records.mounts.at(target);
    if (mount === undefined) return how?.claimTarget === true ? await clear(target, call) : undefined;
    // Mounted after volumeAt found nothing.
    if (volume === undefined) return;
    if (mount.volumeId !== volume) throw otherVolumeMounted(given);
    if (how?.unheld !== true && how?.force !== true && parts.engineMounts().isHeld(volume, target))
      throw heldByContainers(target);
    requireMounting(mounter);
    const store = records.volumes.byId(volume)?.store;
    const intent = { ...intended('volume.unmount', parts, mount), ...(store && { store }) };
    await operations.run(intent, call, async (work) => {
      await binding.takeDown(mount, work, how);
      return { value: undefined, announce: () => tell(parts, 'unmounted', mount) };
    });
  };
}

export function createReplay(parts: MountParts, binding: TargetBinding): Mounts['replay'] {
  const { records, operations, log } = parts;

  async function replayOne(kind: string, mount: Mount, work: Work): Promise<void> {
    if (kind === 'volume.unmount') return await binding.takeDown(mount, work);
    if (records.mounts.at(mount.target) !== undefined) return;
    try {
      await binding.undo(mount, work);
    } catch (thrown) {
      if (stowageError(thrown).code !== 'in-use') throw thrown;
      // The mount is in use, so it had completed: keep it.
      records.mounts.put(mount);
    }
  }

  async function resume(operation: Operation, scope: Scope): Promise<void> {
    const mount = operation.params['mount'] as Mount;
    try {
      await operations.resume(operation, scope, {
        keys: [stageKey(mount.volumeId), targetKey(mount.target)],
        // Retries would keep the volume locked, so nobody could mount it. The caller repeats an unmount, and the next start cleans up the
        // rest of a mount.
        once: true,
        work: async (work) => ({ value: await replayOne(operation.kind, mount, work) }),
      });
    } catch (thrown) {
      log.warn('mount could not be repaired', { target: mount.target, why: stowageError(thrown).message });
    }
  }

  return async (scope) => {
    const interrupted = records.operations
      .unfinished()
      .filter(({ kind }) => kind === 'volume.mount' || kind === 'volume.unmount');
    await eachBounded(interrupted, inParallel, (operation) => resume(operation, scope));
  };
}
