import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import { stageKey } from './keys.ts';
import type { Mount, Source, VolumeId } from './model.ts';
import type { MountParts, Mounts } from './mounts.ts';
import { titled } from './publishing.ts';
import type { Staging } from './staging.ts';

const repairMs = 30_000;

/**
 * When whoever served a mount is gone for good, the kernel answers its users with an error for ever. It is mounted anew at the
 * same places: who opens a path there from now on is served; what was open stays broken, and its users are told.
 */
export function createRepair(parts: MountParts, staging: Staging): Mounts['repair'] {
  const { records, operations, mounter, events, log, clock } = parts;

  /** As it is now: the server may have got another address, or handle. Else as it was. */
  async function sourceNow(id: VolumeId, known: Source, scope: Scope): Promise<Source> {
    const volume = records.volumes.byId(id);
    if (volume === undefined) return known;
    try {
      return await parts.stores().use(volume.store, (store) => store.source(volume, scope));
    } catch (thrown) {
      log.info('a dead mount is repaired by what was known of it', { volume: id, why: stowageError(thrown).message });
      return known;
    }
  }

  async function repairOne(id: VolumeId, scope: Scope): Promise<void> {
    using _ = await operations.lock([stageKey(id)], scope.signal);
    const mounts = records.mounts.of(id);
    const [first] = mounts;
    // Somebody was faster.
    if (first === undefined || (await staging.dead(mounts, scope)).length === 0) return;
    const source = await sourceNow(id, first.source, scope);
    const live = (await staging.live(mounts, scope)).filter(({ mounted }) => mounted);
    // First what they are made of: if that fails, nothing is worse than before.
    await staging.stage(source, id, scope);
    for (const { mounted: _gone, ...mount } of live) {
      await mounter.detach(mount.target, scope);
      await bindAgain({ ...mount, source }, scope);
    }
    log.warn('a dead mount was mounted anew', { volume: titled(parts, id), targets: live.map(({ target }) => target) });
  }

  async function bindAgain(mount: Mount, scope: Scope): Promise<void> {
    await mounter.bind(staging.path(mount.volumeId), mount.target, { readOnly: mount.readOnly }, scope);
    records.mounts.put(mount);
    const store = records.volumes.byId(mount.volumeId)?.store;
    const { user, target } = mount;
    events.publish('mount.repaired', target, store, { volume: mount.volumeId, target, user });
  }

  return async (scope) => {
    if (mounter.unable !== undefined) return;
    using limit = clock.deadline(repairMs, scope.signal);
    const within = { ...scope, signal: limit.signal };
    for (const id of await staging.dead(records.mounts.list(), within)) {
      try {
        await repairOne(id, within);
      } catch (thrown) {
        const { message, action } = stowageError(thrown);
        log.error('a dead mount could not be repaired', { volume: titled(parts, id), why: message, action });
      }
    }
  };
}
