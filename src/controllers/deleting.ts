import type { Scope } from '#base/log.ts';
import { driverNamed } from '#core/csi-drivers.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreName, VolumeName } from '#core/model.ts';
import { qualified } from '#core/names.ts';
import { isHandle } from '#core/volume-handles.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { handleAndStoreOf, topologiesOf } from './handles.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter } from './machinery/outcome.ts';
import { provisionedByAnnotation, volumeFinalizer, volumeReference } from './names.ts';
import type { Provisioner } from './provisioner.ts';
import { reportFailure } from './report-failure.ts';

/** Kubernetes keeps this finalizer on a PersistentVolume while a claim uses it. */
const protectionFinalizer = 'kubernetes.io/pv-protection';

/** The volume or its node does not exist, or the store is read-only: a retry would not succeed either. */
const finalLabelFailures = new Set(['volume-unknown', 'volume-node-gone', 'volume-node-unknown', 'store-read-only']);

/** What the controller does with the volume of a PersistentVolume without a claim. */
type ReleasedAction = 'delete' | 'retain';

/** Deletes or retains the volumes of released PersistentVolumes, by their reclaim policy. */
export function createDeleting(context: ControllerContext): Controller {
  const { client, clock, caches, events, provisioners } = context;

  /** Undefined if there is nothing to do, or not yet. */
  function actionFor(volume: PersistentVolume): ReleasedAction | undefined {
    const { metadata, spec, status } = volume;
    // Never touch PersistentVolumes that a user wrote by hand.
    const isProvisioned = metadata.annotations?.[provisionedByAnnotation] === spec.csi?.driver;
    if (!isProvisioned || !provisioners.has(spec.csi?.driver ?? '')) return undefined;
    const isDeletable = metadata.deletionTimestamp !== undefined && !metadata.finalizers?.includes(protectionFinalizer);
    if (status?.phase === 'Bound' || isClaimed(volume)) return undefined;
    if (spec.persistentVolumeReclaimPolicy === 'Delete')
      return status?.phase === 'Released' || isDeletable ? 'delete' : undefined;
    return isDeletable && metadata.finalizers?.includes(volumeFinalizer) === true ? 'retain' : undefined;
  }

  const isClaimed = ({ metadata: { name }, spec: { claimRef } }: PersistentVolume): boolean =>
    caches.claims.byIndex('uid', claimRef?.uid ?? '').some(({ spec }) => spec.volumeName === name);

  async function reconcile(key: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    const cached = caches.volumes.get(key);
    if (cached === undefined || actionFor(cached) === undefined) return done;
    // Deletion is final, so get the current reclaim policy from the API server.
    const volume = await ignoreNotFound(client.get(persistentVolumes, { name: key }, scope.signal));
    if (volume === undefined || volume.metadata.uid !== cached.metadata.uid) return done;
    const action = actionFor(volume);
    const provisioner = provisioners.get(volume.spec.csi?.driver ?? '');
    if (action === undefined || provisioner === undefined) return done;
    if (action === 'delete') await deleteVolume(volume, provisioner, scope);
    else await retainVolume(volume, provisioner, scope);
    await deletePersistentVolume(volume, scope);
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

  /** Searches by every handle: a user may have written a second PersistentVolume for another namespace. */
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

  const persistentVolumesWith = (handle: string): readonly PersistentVolume[] =>
    caches.volumes.byIndex('handle', handle);

  /** Labels the volume as retained, so that the controllers of orphans ignore it. Until then the PersistentVolume stays. */
  async function retainVolume(volume: PersistentVolume, provisioner: Provisioner, scope: Scope): Promise<void> {
    try {
      await provisioner.retain(volume, scope);
    } catch (error) {
      const { reason } = stowageError(error);
      // An agent may not know a new store yet, so `store-unknown` is final only if the Store object is gone.
      const isStoreGone =
        reason === 'store-unknown' && caches.stores.get(handleAndStoreOf(volume).store ?? '') === undefined;
      if (!isStoreGone && !finalLabelFailures.has(reason)) throw error;
      scope.log.warn('a retained volume could not be labelled', { error });
    }
  }

  /** Removes the finalizer before the deletion: other controllers also change an object that is being deleted. */
  async function deletePersistentVolume({ metadata }: PersistentVolume, { signal }: Scope): Promise<void> {
    const { name = '', uid = '', resourceVersion = '', deletionTimestamp, finalizers = [] } = metadata;
    if (finalizers.includes(volumeFinalizer)) {
      const remaining = finalizers.filter((one) => one !== volumeFinalizer);
      // With the resourceVersion that was read, so that finalizers added by others are kept.
      const body = { metadata: { uid, resourceVersion, finalizers: remaining } };
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
    workersPerGroup: 16,
    maxRetryMs: 60_000,
    groupOf: (key) => caches.volumes.get(key)?.spec.csi?.volumeAttributes?.['store'] ?? '',
    onFailure: (key, error) => {
      const volume = caches.volumes.get(key);
      const failureEvent = { reason: 'VolumeFailedDelete', action: 'Delete' };
      if (volume !== undefined) reportFailure(events, volumeReference(volume), failureEvent, error);
    },
  });
  /** Most PersistentVolumes are bound and need no reconcile. */
  const keyIfUnclaimed = (volume: PersistentVolume | undefined): readonly string[] =>
    volume === undefined || actionFor(volume) === undefined ? [] : [volume.metadata.name ?? ''];
  controller.follow(caches.volumes, keyIfUnclaimed);
  // Wait for these caches: the controller has to know which nodes and stores are gone.
  controller.follow(caches.nodes, () => []);
  controller.follow(caches.stores, () => []);
  // A PersistentVolume may be released before its claim is gone.
  controller.follow(caches.claims, ({ spec: { volumeName = '' } }) => keyIfUnclaimed(caches.volumes.get(volumeName)));
  return controller;
}

/** On stores of nodes a name is unique only within a node. A PersistentVolume without a known node may mean any node. */
function mayBeOnSameNode(one: PersistentVolume, other: PersistentVolume): boolean {
  const [nodes, otherNodes] = [topologiesOf(one), topologiesOf(other)];
  const isOnNodes = driverNamed(one.spec.csi?.driver)?.topology === 'node' && nodes.length > 0 && otherNodes.length > 0;
  return !isOnNodes || nodes.some((node) => otherNodes.includes(node));
}

/** A node releases the volume shortly after its last pod has ended, without notifying the controller: `busy` causes a retry. */
const stillInUse = (cause: unknown): StowageError =>
  new StowageError('the volume is still in use on a node', {
    code: 'busy',
    reason: 'volume-still-used',
    action:
      'Stowage deletes it as soon as no node uses it. If a node is gone for good, delete its Node object, or taint it with node.kubernetes.io/out-of-service.',
    cause,
  });

const sharedByAnother = (name: string): StowageError =>
  new StowageError(`PersistentVolume '${name}' refers to the same volume`, {
    code: 'busy',
    reason: 'volume-has-another-pv',
    action: `Delete that PersistentVolume and its claim first; Stowage then deletes the data with this one. To keep the data, retain this PersistentVolume: kubectl patch pv NAME --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`,
  });
