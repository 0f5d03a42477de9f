import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import { createClearTarget } from './clear-target.ts';
import { stowageError } from './errors.ts';
import { chownVolumeToGroup, createGroupRemount } from './fsgroup.ts';
import { nameKey, stageKey, targetKey, volumeKey } from './lock-keys.ts';
import type { Mount, Operation, Source, Volume, VolumeId } from './model.ts';
import {
  heldByContainers,
  otherVolumeMounted,
  requireMounting,
  requireNoOtherPod,
  requireSameMount,
  unmountUnfinished,
} from './mount-errors.ts';
import { createMountPathResolver } from './mount-path.ts';
import type { LiveMount, MountParts, Mounts, PublishOptions } from './mounts.ts';
import { isVolumeId } from './names.ts';
import type { Call, Work } from './operations.ts';
import type { Store, UnstageOptions } from './ports.ts';
import type { UsePublisher } from './use-publisher.ts';
import { isOurMount, type VolumeStaging } from './volume-staging.ts';

const mountDeadlineMs = 60_000;
const inParallel = 8;
const unending = new AbortController().signal;

/** The steps between a staged volume and a target, each safe to repeat. Call them with the locks held. */
export interface TargetBinding {
  bind(mount: Mount, volume: Volume, scope: Scope): Promise<void>;
  /** Takes back what an interrupted `bind` may have done, and nothing else. */
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

  /** With force, a device that is in use elsewhere stays attached. The next start, or the deletion of the volume, detaches it. */
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
      // Before anything is taken away: what is refused can be repeated.
      if (isLast && how?.force !== true) await staging.flush(mount.source, mount.volumeId, scope);
      await unmountOurs(mount, scope, how);
      if (mount.madeTarget) await mounter.removeTarget(mount.target, scope);
      // Keep the record until what outlives the mount, such as a device, is gone: a repeated call finds the record and continues. The next
      // start unmounts other volumes that stay staged.
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

/** `store/name`, or the id of a volume that is no longer on record. */
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

  /** Asks the store only where the source can change while the volume is staged. */
  async function sourceOf(volume: Volume, store: Store, scope: Scope): Promise<Source> {
    const [first] = records.mounts.of(volume.id);
    if (first === undefined || !clients.isFixedWhileStaged(first.source)) return await store.source(volume, scope);
    return (await staging.isStaged(volume.id, scope)) ? first.source : await store.source(volume, scope);
  }

  /** As it is staged already. */
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
      // The scope may be what ended; undoing must not be cut short by it.
      using limit = clock.deadline(mountDeadlineMs, unending);
      // It does not come any more: what is left to be said is without it.
      coming[Symbol.dispose]();
      await binding
        .undo(mount, { ...work, signal: limit.signal })
        .catch((cause: unknown) => leftBehind(work.log, mount, cause));
      throw thrown;
    }
  }

  const publish: Mounts['publish'] = async (ref, wanted, how, call) => {
    // What is on record is asked for once, with its locks held: each time costs a shared store several calls.
    const recorded = isVolumeId(ref) ? records.volumes.byId(ref) : undefined;
    const before = recorded ?? (await catalogue.resolve(ref, call));
    // What nobody can mount is told first: the right to mount would not help.
    if (mounter.unable !== undefined)
      await parts.stores().use(before.store, async (store) => staging.refuse(await store.source(before, call)));
    requireMounting(mounter);
    const resolved = async (): Promise<string> => (await mounter.inspectTarget(wanted, before.access, call)).target;
    const target = how.ownTarget === true ? wanted : await resolved();
    const published = await parts.stores().use(before.store, async (store, config) => {
      using _ = await operations.lock([volumeKey(before.id), nameKey(before.store, before.name)], call.signal);
      using _mount = await operations.lock([stageKey(before.id), targetKey(target)], call.signal);
      const volume = await catalogue.resolve(before.id, call);
      // Another host has renamed it: the locks are those of another name.
      if (volume.name !== before.name || volume.store !== before.store) return undefined;
      const readOnly = how.readOnly || config.policy.readOnly;
      const [present] = await staging.withKernelState([records.mounts.at(target)].filter(isThere), call);
      if (present?.mounted) {
        requireSameMount(present, volume, readOnly);
        return present;
      }
      // The record is stale: somebody unmounted the target, or an earlier unmount failed half-way.
      using _present = present && setAside(parts, present, volume);
      if (how.singlePod === true) requireNoOtherPod(volume, records.mounts.of(volume.id));
      // Looked at again, now that nobody else mounts or unmounts there: an unmount removes the folder it made.
      const { existed } = await mounter.inspectTarget(target, volume.access, call);
      const user = how.user ?? { kind: 'path', name: target, node };
      const use = { readOnly, group: how.group };
      const found = clients.withMountOptions(await sourceOf(volume, store, call), use);
      if (!readOnly) await store.usable?.(found, call);
      const again = await regrouping.unbindForGroup(volume, found, call);
      const source = await shared(volume, found, call);
      // What we made is ours also after somebody unmounted it.
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
 * Removes the record. If something can outlive the mount, such as a device that is still attached, disposing puts the record back unless
 * a new one took its place.
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
  log.warn('a failed mount is cleared away at the next start', {
    target: mount.target,
    why: stowageError(cause).message,
  });
}

export function createUnpublish(parts: MountParts, binding: TargetBinding): Mounts['unpublish'] {
  const { records, operations, mounter } = parts;
  const locate = createMountPathResolver(parts);
  const clear = createClearTarget(parts);
  /** What is there, or comes to be there by whoever mounts it at the moment. */
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
    // Before looking: a mount may be on its way there, and must not appear after we said that there is none.
    const stage = volume === undefined ? [] : [stageKey(volume)];
    using _ = await operations.lock([...stage, targetKey(target)], call.signal);
    const mount = records.mounts.at(target);
    if (mount === undefined) return how?.claimTarget === true ? await clear(target, call) : undefined;
    // It came after there was none.
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
      // Somebody works in it already: then it was made, and stays.
      records.mounts.put(mount);
    }
  }

  async function resume(operation: Operation, scope: Scope): Promise<void> {
    const mount = operation.params['mount'] as Mount;
    try {
      await operations.resume(operation, scope, {
        keys: [stageKey(mount.volumeId), targetKey(mount.target)],
        // A retry would keep the volume locked, and nobody could mount it meanwhile. The caller of an unmount repeats it, and what is left of
        // a mount is cleaned up at the next start.
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
