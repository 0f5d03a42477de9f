import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { Clients } from './clients.ts';
import { stowageError } from './errors.ts';
import type { Events } from './events.ts';
import { createFairPass } from './fair-pass.ts';
import { stageKey } from './lock-keys.ts';
import type { Mount, Source, VolumeId } from './model.ts';
import { volumeTitle } from './mount-operations.ts';
import type { Operations } from './operations.ts';
import type { Mounter, Records } from './ports.ts';
import { recordRepair } from './repaired-mounts.ts';
import type { Stores } from './stores.ts';
import { setUnderRepair, type VolumeStaging, volumesUnderRepair } from './volume-staging.ts';

/** The timeout for repairing one volume. */
const volumeTimeoutMs = 20_000;
/** How long to wait for the store's current source before using the recorded one. */
const sourceTimeoutMs = 3_000;
const maxConcurrentVolumes = 4;

/**
 * Remounts dead mounts at the same targets. Returns the volumes that could not be repaired, or whose state could not be
 * determined.
 */
export type RepairMounts = (scope: Scope) => Promise<readonly VolumeId[]>;

export interface RepairMountsParts {
  readonly records: Records;
  readonly mounter: Mounter;
  readonly clients: Clients;
  readonly stores: () => Pick<Stores, 'use'>;
  readonly operations: Pick<Operations, 'lock'>;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
}

/**
 * Remounts dead mounts. When the process that served a mount is gone, the kernel returns errors to its users forever. After a remount
 * at the same targets, newly opened paths work. Files that were open before stay broken; an event reports that to their users.
 */
export function createRepairMounts(parts: RepairMountsParts, staging: VolumeStaging): RepairMounts {
  const { records, clients, operations, mounter, events, log, clock } = parts;
  const pass = createFairPass<VolumeId>(clock, { maxConcurrent: maxConcurrentVolumes, itemTimeoutMs: volumeTimeoutMs });
  const setRepairing = (id: VolumeId, isUnderRepair: boolean): void => setUnderRepair(records, id, isUnderRepair);

  /** The source with the server's current address and file handle; the known source if the store does not answer in time. */
  async function currentSource(id: VolumeId, known: Source, scope: Scope): Promise<Source> {
    const volume = records.volumes.byId(id);
    if (volume === undefined) return known;
    using limit = clock.deadline(sourceTimeoutMs, scope.signal);
    try {
      const sourceFromStore = parts
        .stores()
        .use(volume.store, (store) => store.source(volume, { ...scope, signal: limit.signal }));
      return clients.remountSource(known, await unlessAborted(sourceFromStore, limit.signal));
    } catch (thrown) {
      log.info('a dead mount is repaired with its recorded source', { volume: id, why: stowageError(thrown).message });
      return known;
    }
  }

  async function repairOne(id: VolumeId, scope: Scope): Promise<void> {
    using _ = await operations.lock([stageKey(id)], scope.signal);
    const mounts = records.mounts.byVolume(id);
    const [first] = mounts;
    if (first === undefined) return setRepairing(id, false);
    const isDead = (await staging.findDead(mounts, scope)).length > 0;
    const source = isDead ? await currentSource(id, first.source, scope) : first.source;
    // Record the repair before unmounting anything, so that the next start can finish it after a crash.
    setRepairing(id, true);
    // Do not wait for a server that does not answer; programs that use the mount will wait for it.
    if (isDead) {
      await staging.stage(source, id, scope, { skipServerCheck: true });
      // Update all records of the volume, including mounts that are currently not mounted: later mounts share this source.
      for (const mount of mounts) records.mounts.put({ ...mount, source });
    }
    const staleMounts = new Set(await staging.staleTargets(mounts, scope));
    for (const mount of mounts.filter((one) => staleMounts.has(one))) await rebind(mount, scope);
    setRepairing(id, false);
    log.warn('a dead mount was remounted', {
      volume: volumeTitle(parts, id),
      targets: [...staleMounts].map((one) => one.target),
    });
  }

  async function rebind(mount: Mount, scope: Scope): Promise<void> {
    await mounter.detach(mount.target, scope);
    await mounter.bind(staging.path(mount.volumeId), mount.target, { readOnly: mount.readOnly }, scope);
    const store = records.volumes.byId(mount.volumeId)?.store;
    const { user, target } = mount;
    recordRepair(records, mount, clock.now());
    events.publish('mount.repaired', target, store, { volume: mount.volumeId, target, user });
  }

  return async (scope) => {
    if (mounter.unable !== undefined) return [];
    const mountsByVolume = Map.groupBy(records.mounts.list(), ({ volumeId }) => volumeId);
    const staleVolumes = (await staging.staleTargets([...mountsByVolume.values()].flat(), scope)).map(
      ({ volumeId }) => volumeId,
    );
    const needRepair = new Set([...staleVolumes, ...volumesUnderRepair(records)]);
    // Includes volumes that this pass does not reach, or that an earlier pass is still working on.
    const unrepaired = new Set([...mountsByVolume.keys(), ...needRepair]);
    await pass([...unrepaired], scope, async (id, itemScope) => {
      let failure = 'cannot tell whether a mount is served';
      try {
        // Check each volume separately, so that a problem with one does not affect the others.
        if (!needRepair.has(id) && (await staging.findDead(mountsByVolume.get(id) ?? [], itemScope)).length === 0)
          return void unrepaired.delete(id);
        failure = 'a dead mount could not be repaired';
        await repairOne(id, itemScope);
        unrepaired.delete(id);
      } catch (thrown) {
        const { message, action } = stowageError(thrown);
        log.error(failure, { volume: volumeTitle(parts, id), why: message, action });
      }
    });
    return [...unrepaired];
  };
}
