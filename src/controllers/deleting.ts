import type { Scope } from '#base/log.ts';
import { driverNamed } from '#core/csi-drivers.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreName, VolumeName } from '#core/model.ts';
import { qualified } from '#core/names.ts';
import { isHandle } from '#core/volume-handles.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import { type ControllerParts, ignoreNotFound } from './controller-parts.ts';
import { handleAndStoreOf, topologiesOf } from './handles.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { type Again, type Done, done } from './machinery/outcome.ts';
import { provisionedBy, volumeFinalizer, volumeReference } from './names.ts';
import type { Provisioner } from './provisioner.ts';
import { reportFailure } from './report-failure.ts';

/** What keeps a PersistentVolume that a claim has; Kubernetes takes it away when no claim does. */
const protection = 'kubernetes.io/pv-protection';

/** There is no such volume, nobody who has it any more, or nothing to write it on: then it will not be said later either. */
const cannotBeLabelled = new Set(['volume-unknown', 'volume-node-gone', 'volume-node-unknown', 'store-read-only']);

/** What becomes of a volume when nobody claims it any more. */
type Fate = 'delete' | 'leave';

/** Volumes end with their PersistentVolumes, or are left where they are, as the reclaim policy says. */
export function createDeleting(parts: ControllerParts): Controller {
  const { client, clock, caches, events, provisioners } = parts;

  /** Undefined: it is none of our business, or not yet. */
  function fateOf(volume: PersistentVolume): Fate | undefined {
    const { metadata, spec, status } = volume;
    // Those that somebody wrote by hand are theirs, with everything that is on them.
    const isMade = metadata.annotations?.[provisionedBy] === spec.csi?.driver;
    if (!isMade || !provisioners.has(spec.csi?.driver ?? '')) return undefined;
    const isOver = metadata.deletionTimestamp !== undefined && !metadata.finalizers?.includes(protection);
    if (status?.phase === 'Bound' || isClaimed(volume)) return undefined;
    if (spec.persistentVolumeReclaimPolicy === 'Delete')
      return status?.phase === 'Released' || isOver ? 'delete' : undefined;
    return isOver && metadata.finalizers?.includes(volumeFinalizer) === true ? 'leave' : undefined;
  }

  const isClaimed = ({ metadata: { name }, spec: { claimRef } }: PersistentVolume): boolean =>
    caches.claims.by('uid', claimRef?.uid ?? '').some(({ spec }) => spec.volumeName === name);

  async function reconcile(key: string, scope: Scope): Promise<Done | Again> {
    const cached = caches.volumes.get(key);
    if (cached === undefined || fateOf(cached) === undefined) return done;
    // Somebody may have changed their mind since; what is destroyed does not come back.
    const volume = await ignoreNotFound(client.get(persistentVolumes, { name: key }, scope.signal));
    if (volume === undefined || volume.metadata.uid !== cached.metadata.uid) return done;
    const fate = fateOf(volume);
    const provisioner = provisioners.get(volume.spec.csi?.driver ?? '');
    if (fate === undefined || provisioner === undefined) return done;
    if (fate === 'delete') await deleteVolume(volume, provisioner, scope);
    else await retainVolume(volume, provisioner, scope);
    await release(volume, scope);
    return done;
  }

  async function deleteVolume(volume: PersistentVolume, provisioner: Provisioner, scope: Scope): Promise<void> {
    const [other] = otherPersistentVolumesOf(volume);
    if (other !== undefined) throw sharedByAnother(other);
    try {
      await provisioner.delete(volume, scope);
    } catch (thrown) {
      if (stowageError(thrown).code === 'in-use') throw stillInUse(thrown);
      throw thrown;
    }
    const { handle } = handleAndStoreOf(volume);
    if (!isHandle(handle)) scope.log.warn('no volume was deleted: the volumeHandle is not one of Stowage', { handle });
  }

  /** By whatever they call it: somebody may have given it to a second namespace. */
  function otherPersistentVolumesOf(volume: PersistentVolume): readonly string[] {
    const { store = '', name = '' } = volume.spec.csi?.volumeAttributes ?? {};
    const byName =
      store === '' || name === '' ? [] : persistentVolumesWith(qualified(store as StoreName, name as VolumeName));
    const all = [
      ...persistentVolumesWith(handleAndStoreOf(volume).handle),
      ...byName.filter((one) => mayBeOnSameNode(volume, one)),
    ];
    return all.flatMap((one) => (one.metadata.uid === volume.metadata.uid ? [] : (one.metadata.name ?? '')));
  }

  const persistentVolumesWith = (handle: string): readonly PersistentVolume[] => caches.volumes.by('handle', handle);

  /** Whoever looks for volumes that nobody claims is to leave it alone: until that is said on it, the object stays. */
  async function retainVolume(volume: PersistentVolume, provisioner: Provisioner, scope: Scope): Promise<void> {
    try {
      await provisioner.retain(volume, scope);
    } catch (error) {
      const { reason } = stowageError(error);
      // Agents may be slow to know a store, and never forget the volumes of one that was taken away.
      const isStoreGone =
        reason === 'store-unknown' && caches.stores.get(handleAndStoreOf(volume).store ?? '') === undefined;
      if (!isStoreGone && !cannotBeLabelled.has(reason)) throw error;
      scope.log.warn('a retained volume could not be labelled', { error });
    }
  }

  /** In this order: an object that is being deleted is changed by others too. */
  async function release({ metadata }: PersistentVolume, { signal }: Scope): Promise<void> {
    const { name = '', uid = '', resourceVersion = '', deletionTimestamp, finalizers = [] } = metadata;
    if (finalizers.includes(volumeFinalizer)) {
      const left = finalizers.filter((one) => one !== volumeFinalizer);
      // Only the one that was read: what others have put there since stays.
      const body = { metadata: { uid, resourceVersion, finalizers: left } };
      await ignoreNotFound(client.patch(persistentVolumes, { name }, { kind: 'merge', body }, signal));
    }
    if (deletionTimestamp === undefined)
      await ignoreNotFound(client.delete(persistentVolumes, { name }, { uid }, signal));
  }

  const controller = createController({
    name: 'deleting',
    clock,
    reconcile,
    workers: 32,
    perGroup: 16,
    maxRetryMs: 60_000,
    groupOf: (key) => caches.volumes.get(key)?.spec.csi?.volumeAttributes?.['store'] ?? '',
    onFailure: (key, error) => {
      const volume = caches.volumes.get(key);
      const about = { reason: 'VolumeFailedDelete', action: 'Delete' };
      if (volume !== undefined) reportFailure(events, volumeReference(volume), about, error);
    },
  });
  /** By far the most of them are somebody's. */
  const keyIfUnclaimed = (volume: PersistentVolume | undefined): readonly string[] =>
    volume === undefined || fateOf(volume) === undefined ? [] : [volume.metadata.name ?? ''];
  controller.follow(caches.volumes, keyIfUnclaimed);
  // Known before anything is done: of what is on one that is gone nobody can be asked.
  controller.follow(caches.nodes, () => []);
  controller.follow(caches.stores, () => []);
  // Its claim is the last to go.
  controller.follow(caches.claims, ({ spec: { volumeName = '' } }) => keyIfUnclaimed(caches.volumes.get(volumeName)));
  return controller;
}

/** A name on a node's store is only that node's. One that does not say which node it means may mean this one. */
function mayBeOnSameNode(one: PersistentVolume, other: PersistentVolume): boolean {
  const [mine, theirs] = [topologiesOf(one), topologiesOf(other)];
  const isOnNodes = driverNamed(one.spec.csi?.driver)?.topology === 'node' && mine.length > 0 && theirs.length > 0;
  return !isOnNodes || mine.some((node) => theirs.includes(node));
}

/** A node lets go of it a moment after its last pod has ended, and nobody tells us: it is tried again. */
const stillInUse = (cause: unknown): StowageError =>
  new StowageError('the volume is still in use on a node', {
    code: 'busy',
    reason: 'volume-still-used',
    action:
      'Stowage deletes it when no node uses it any more. If a node is gone for good, delete its Node object, or taint it with node.kubernetes.io/out-of-service.',
    cause,
  });

const sharedByAnother = (name: string): StowageError =>
  new StowageError(`PersistentVolume '${name}' refers to the same volume`, {
    code: 'busy',
    reason: 'volume-has-another-pv',
    action: `Delete that PersistentVolume and its claim first; Stowage then deletes the data with this one. To keep the data, retain this PersistentVolume: kubectl patch pv NAME --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`,
  });
