import type { TakeOverCandidate } from '#cli/take-over-service.ts';
import { provisionedByAnnotation, storeIdentityAnnotation, volumeFinalizer } from '#controllers/names.ts';
import { storeObjects } from '#controllers/store-object.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { claims, persistentVolumes, type Resource, storageClasses } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume } from '#wire/kube/types.ts';
import { notPossible, undefinedIfMissing } from './claim-move.ts';
import { deletesData, keepsDeleted } from './delete-policy.ts';
import { identityRecord, policyBefore, takenFrom, withoutRecords } from './replacement-volume.ts';
import type { VolumePatches } from './volume-patches.ts';

export interface FinishOptions {
  readonly client: KubeClient;
  readonly signal: AbortSignal;
  readonly patches: VolumePatches;
}

const staysRetained = (name: string): string =>
  `the reclaim policy stays Retain, because the previous provisioner may have kept the data of a deleted claim. ` +
  `To let Stowage delete the data: kubectl patch pv ${name} --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}'`;

export function createFinish({ client, signal, patches }: FinishOptions) {
  const { retainData, patchVolume } = patches;
  const getByName = async <T extends KubeObject>(resource: Resource<T>, name = ''): Promise<T | undefined> =>
    name === '' ? undefined : await undefinedIfMissing(client.get(resource, { name }, signal));

  /**
   * Returns `Delete` only if that is no worse for the data than before: the previous provisioner may keep the directory on deletion, which
   * can no longer be found out when the old volume or its class is gone.
   */
  async function policyFor(
    after: PersistentVolume,
    before: PersistentVolume | undefined,
  ): Promise<'Delete' | 'Retain'> {
    const { metadata, spec } = after;
    // The third policy, Recycle, is deprecated.
    if (metadata.annotations?.[policyBefore] !== 'Delete') return 'Retain';
    // An earlier, interrupted run already decided.
    if (before === undefined && metadata.annotations[provisionedByAnnotation] !== undefined)
      return spec.persistentVolumeReclaimPolicy === 'Delete' ? 'Delete' : 'Retain';
    const store = await getByName(storeObjects, spec.csi?.volumeAttributes?.['store']);
    if (store !== undefined && keepsDeleted(store)) return 'Delete';
    const isWorse =
      before === undefined || !deletesData(before, await getByName(storageClasses, before.spec.storageClassName));
    return isWorse ? 'Retain' : 'Delete';
  }

  /** Turns the volume into an ordinary one of Stowage's, with the old volume's reclaim policy or Retain. */
  async function finish({ from, to }: TakeOverCandidate, identity: string | undefined): Promise<string> {
    const [before, after] = await Promise.all([getByName(persistentVolumes, from), getByName(persistentVolumes, to)]);
    if (after === undefined || after.metadata.annotations?.[takenFrom] !== from) return '';
    const { claimRef } = after.spec;
    const { namespace = '', name = '', uid } = claimRef ?? {};
    const claim = await undefinedIfMissing(client.get(claims, { namespace, name }, signal));
    if (claim?.spec.volumeName !== to || claim.metadata.uid !== uid)
      throw notPossible(
        'its claim was deleted, or is bound to another PersistentVolume',
        `Repeat take-over, or delete the PersistentVolumes ${from} and ${to}: the data is kept.`,
      );
    const { annotations, finalizers = [] } = after.metadata;
    const policy = await policyFor(after, before);
    const ended = await client.patch(
      persistentVolumes,
      { name: to },
      {
        kind: 'merge',
        body: {
          metadata: {
            uid: after.metadata.uid,
            resourceVersion: after.metadata.resourceVersion,
            // The identity recorded at the beginning is more reliable than what the store reports by now.
            annotations: {
              ...identityRecord(annotations[storeIdentityAnnotation] ?? identity),
              [provisionedByAnnotation]: fileDriver.name,
            },
            finalizers: [...new Set([...finalizers, volumeFinalizer])],
          },
          spec: { persistentVolumeReclaimPolicy: policy },
        },
      },
      signal,
    );
    if (before !== undefined) {
      const kept = await retainData(before);
      await undefinedIfMissing(client.delete(persistentVolumes, { name: from }, { uid: kept.metadata.uid }, signal));
    }
    await patchVolume(ended, {}, withoutRecords);
    return policy === 'Retain' && annotations[policyBefore] === 'Delete' ? staysRetained(to) : '';
  }

  return { finish };
}
