import { unlessAborted } from '#base/aborted.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import { createFairPass } from './fair-pass.ts';
import { stageKey } from './lock-keys.ts';
import type { Mount, Source, VolumeId } from './model.ts';
import type { MountParts, Mounts } from './mounts.ts';
import { volumeTitle } from './publishing.ts';
import { noteRepaired } from './repaired-mounts.ts';
import { setUnderRepair, type VolumeStaging, volumesUnderRepair } from './volume-staging.ts';

/** For one volume; others have their own. */
const repairMs = 20_000;
/** What the store knows is better than what was known, but not worth waiting for. */
const askMs = 3_000;
const inParallel = 4;

/**
 * When whoever served a mount is gone for good, the kernel answers its users with an error for ever. It is mounted anew at the
 * same places: who opens a path there from now on is served; what was open stays broken, and its users are told.
 */
export function createRepairMounts(parts: MountParts, staging: VolumeStaging): Mounts['repair'] {
  const { records, clients, operations, mounter, events, log, clock } = parts;
  const pass = createFairPass<VolumeId>(clock, { inParallel, itemMs: repairMs });
  const note = (id: VolumeId, isBeing: boolean): void => setUnderRepair(records, id, isBeing);

  /** The server may have got another address, or handle. Else as it was. */
  async function sourceNow(id: VolumeId, known: Source, scope: Scope): Promise<Source> {
    const volume = records.volumes.byId(id);
    if (volume === undefined) return known;
    using limit = clock.deadline(askMs, scope.signal);
    try {
      const asked = parts
        .stores()
        .use(volume.store, (store) => store.source(volume, { ...scope, signal: limit.signal }));
      return clients.replace(known, await unlessAborted(asked, limit.signal));
    } catch (thrown) {
      log.info('a dead mount is repaired by what was known of it', { volume: id, why: stowageError(thrown).message });
      return known;
    }
  }

  async function repairOne(id: VolumeId, scope: Scope): Promise<void> {
    using _ = await operations.lock([stageKey(id)], scope.signal);
    const mounts = records.mounts.of(id);
    const [first] = mounts;
    if (first === undefined) return note(id, false);
    const isDead = (await staging.dead(mounts, scope)).length > 0;
    const source = isDead ? await sourceNow(id, first.source, scope) : first.source;
    // Before anything is taken away: from here on a crash leaves what the next start must finish.
    note(id, true);
    // Nobody waits for a server that is silent: who uses the mount does that.
    if (isDead) {
      await staging.stage(source, id, scope, { skipServerCheck: true });
      // What they share now, and further ones will: those that are not there at the moment, too.
      for (const mount of mounts) records.mounts.put({ ...mount, source });
    }
    const stray = new Set(await staging.staleTargets(mounts, scope));
    for (const mount of mounts.filter((one) => stray.has(one))) await bindAgain(mount, scope);
    note(id, false);
    log.warn('a dead mount was mounted anew', {
      volume: volumeTitle(parts, id),
      targets: [...stray].map((one) => one.target),
    });
  }

  async function bindAgain(mount: Mount, scope: Scope): Promise<void> {
    await mounter.detach(mount.target, scope);
    await mounter.bind(staging.path(mount.volumeId), mount.target, { readOnly: mount.readOnly }, scope);
    const store = records.volumes.byId(mount.volumeId)?.store;
    const { user, target } = mount;
    noteRepaired(records, mount, clock.now());
    events.publish('mount.repaired', target, store, { volume: mount.volumeId, target, user });
  }

  return async (scope) => {
    if (mounter.unable !== undefined) return [];
    const all = Map.groupBy(records.mounts.list(), ({ volumeId }) => volumeId);
    const stray = (await staging.staleTargets([...all.values()].flat(), scope)).map(({ volumeId }) => volumeId);
    const wanted = new Set([...stray, ...volumesUnderRepair(records)]);
    // Also those that this pass does not come to, or that an earlier one is still working on.
    const unrepaired = new Set([...all.keys(), ...wanted]);
    await pass([...unrepaired], scope, async (id, own) => {
      let failure = 'whether a mount is served is not known';
      try {
        // Each by itself: what is wrong with one says nothing about the others.
        if (!wanted.has(id) && (await staging.dead(all.get(id) ?? [], own)).length === 0)
          return void unrepaired.delete(id);
        failure = 'a dead mount could not be repaired';
        await repairOne(id, own);
        unrepaired.delete(id);
      } catch (thrown) {
        const { message, action } = stowageError(thrown);
        log.error(failure, { volume: volumeTitle(parts, id), why: message, action });
      }
    });
    return [...unrepaired];
  };
}
