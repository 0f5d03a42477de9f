import type { KubeClient } from '#wire/kube/client.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';
import { capacityFor, claimRefFor, policyBefore } from './replacement-volume.ts';

/** The changes of PersistentVolumes that a take-over makes. Each requires the version that was read. */
export interface VolumePatches {
  patchVolume(volume: PersistentVolume, spec: object, annotations?: object): Promise<PersistentVolume>;
  /** Sets the policy to Retain, so that deleting the object does not touch the data, and records the previous policy. */
  retainData(volume: PersistentVolume): Promise<PersistentVolume>;
  /** Reserves the volume for a claim of that name. */
  reserve(volume: PersistentVolume, claim: PersistentVolumeClaim): Promise<PersistentVolume>;
}

export function createVolumePatches(client: KubeClient, signal: AbortSignal): VolumePatches {
  /** Patches only the version that was read: if another client has changed the volume, the new state must be checked first. */
  function patchVolume(volume: PersistentVolume, spec: object, annotations: object = {}): Promise<PersistentVolume> {
    const { name = '', uid = '', resourceVersion = '' } = volume.metadata;
    const body = { metadata: { uid, resourceVersion, annotations }, spec };
    return client.patch(persistentVolumes, { name }, { kind: 'merge', body }, signal);
  }

  async function retainData(volume: PersistentVolume): Promise<PersistentVolume> {
    const { persistentVolumeReclaimPolicy: policy = 'Retain' } = volume.spec;
    if (policy === 'Retain' && volume.metadata.annotations?.[policyBefore] !== undefined) return volume;
    return await patchVolume(volume, { persistentVolumeReclaimPolicy: 'Retain' }, { [policyBefore]: policy });
  }

  async function reserve(to: PersistentVolume, claim: PersistentVolumeClaim): Promise<PersistentVolume> {
    const storage = capacityFor(to, claim);
    if (to.spec.claimRef?.uid === undefined && to.spec.capacity?.['storage'] === storage) return to;
    const claimRef = { ...claimRefFor(claim), uid: null, resourceVersion: null };
    return await patchVolume(to, { capacity: { storage }, claimRef });
  }

  return { patchVolume, retainData, reserve };
}
