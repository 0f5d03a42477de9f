import type { TakeOverCandidate } from '#cli/take-over-service.ts';
import { provisionedBy, storeIdentity, volumeFinalizer } from '#controllers/names.ts';
import { storeObjects } from '#controllers/store-object.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { claims, persistentVolumes, type Resource, storageClasses } from '#wire/kube/resources.ts';
import type { KubeObject, PersistentVolume } from '#wire/kube/types.ts';
import { keepsDeleted, wasDestroyed } from './deletion.ts';
import { absent, left, type Moving } from './moving.ts';
import { nothingRemembered, policyBefore, takenFrom, withIdentity } from './objects.ts';

export interface FinishingParts extends Pick<Moving, 'keepData' | 'change'> {
  readonly client: KubeClient;
  readonly signal: AbortSignal;
}

const staysRetained = (name: string): string =>
  `it stays Retain, for it is not known that its data would have been destroyed with the claim. ` +
  `If they may be: kubectl patch pv ${name} --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}'`;

export function createFinishing({ client, signal, keepData, change }: FinishingParts) {
  const called = async <T extends KubeObject>(resource: Resource<T>, name = ''): Promise<T | undefined> =>
    name === '' ? undefined : await absent(client.get(resource, { name }, signal));

  /**
   * `Delete` only where that is no worse for the data than the one before was: theirs can mean that a directory is kept, which is not
   * known any more when the one before, or its class, is gone.
   */
  async function policyFor(
    after: PersistentVolume,
    before: PersistentVolume | undefined,
  ): Promise<'Delete' | 'Retain'> {
    const { metadata, spec } = after;
    // Kubernetes knows a third one, which is over for all but the oldest kinds of volumes.
    if (metadata.annotations?.[policyBefore] !== 'Delete') return 'Retain';
    // It was decided already, by one that was stopped half-way.
    if (before === undefined && metadata.annotations[provisionedBy] !== undefined)
      return spec.persistentVolumeReclaimPolicy === 'Delete' ? 'Delete' : 'Retain';
    const store = await called(storeObjects, spec.csi?.volumeAttributes?.['store']);
    if (store !== undefined && keepsDeleted(store)) return 'Delete';
    const isWorse =
      before === undefined || !wasDestroyed(before, await called(storageClasses, before.spec.storageClassName));
    return isWorse ? 'Retain' : 'Delete';
  }

  /** Now it is as any that Stowage made itself, and ends as the one before would have, or later. */
  async function finish({ from, to }: TakeOverCandidate, identity: string | undefined): Promise<string> {
    const [before, after] = await Promise.all([called(persistentVolumes, from), called(persistentVolumes, to)]);
    if (after === undefined || after.metadata.annotations?.[takenFrom] !== from) return '';
    const { claimRef } = after.spec;
    const { namespace = '', name = '', uid } = claimRef ?? {};
    const claim = await absent(client.get(claims, { namespace, name }, signal));
    if (claim?.spec.volumeName !== to || claim.metadata.uid !== uid)
      throw left(
        'its claim is gone, or has another volume',
        `Repeat take-over, or delete the PersistentVolumes ${from} and ${to} yourself: the data stay.`,
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
            // What was said when it was begun is nearer to the truth than what the store says by now.
            annotations: { ...withIdentity(annotations[storeIdentity] ?? identity), [provisionedBy]: fileDriver.name },
            finalizers: [...new Set([...finalizers, volumeFinalizer])],
          },
          spec: { persistentVolumeReclaimPolicy: policy },
        },
      },
      signal,
    );
    if (before !== undefined) {
      const kept = await keepData(before);
      await absent(client.delete(persistentVolumes, { name: from }, { uid: kept.metadata.uid }, signal));
    }
    await change(ended, {}, nothingRemembered);
    return policy === 'Retain' && annotations[policyBefore] === 'Delete' ? staysRetained(to) : '';
  }

  return { finish };
}
