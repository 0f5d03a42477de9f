import { bytesOf } from '#base/quantity.ts';
import { classNameOf, storeIdentityAnnotation } from '#controllers/names.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

/** On Stowage's PersistentVolume until the take-over is finished: the name of the old one. */
export const takenFrom = 'stowage.dev/taken-over-from';
/** Also there: the claim as it was, since it does not exist for a moment between the two PersistentVolumes. */
export const claimAsWas = 'stowage.dev/taken-over-claim';
/** On both: the reclaim policy that will apply to the data after the take-over. */
export const policyBefore = 'stowage.dev/reclaim-policy';

/** Derived from the old name, so that the volume cannot be created twice. */
export const replacementName = (volume: string): string => `${volume}-stowage`;

/** Annotations with which Kubernetes and provisioners record how a claim got its volume. */
const bindingAnnotations =
  /^(pv\.kubernetes\.io\/|volume\.kubernetes\.io\/|volume\.beta\.kubernetes\.io\/storage-provisioner$)/;

/** The claim without the fields of this instance, so that it can be created again, for any volume. */
export function claimTemplate({ metadata, spec }: PersistentVolumeClaim): PersistentVolumeClaim {
  const { name = '', namespace = '', labels, annotations = {}, ownerReferences } = metadata;
  const { volumeName: _, ...rest } = spec;
  const kept = Object.entries(annotations).filter(([key]) => !bindingAnnotations.test(key));
  return {
    metadata: {
      name,
      namespace,
      annotations: Object.fromEntries(kept),
      ...(labels === undefined ? {} : { labels }),
      ...(ownerReferences === undefined ? {} : { ownerReferences }),
    },
    spec: rest,
  };
}

export const claimRecord = (claim: PersistentVolumeClaim): Readonly<Record<string, string>> => ({
  [claimAsWas]: JSON.stringify(claimTemplate(claim)),
});

export const identityRecord = (identity: string | undefined): Readonly<Record<string, string>> =>
  identity === undefined ? {} : { [storeIdentityAnnotation]: identity };

export const recordedClaim = ({ metadata }: PersistentVolume): PersistentVolumeClaim | undefined => {
  const text = metadata.annotations?.[claimAsWas];
  return text === undefined ? undefined : (JSON.parse(text) as PersistentVolumeClaim);
};

/** Removes all records of the take-over. */
export const withoutRecords = { [takenFrom]: null, [claimAsWas]: null, [policyBefore]: null };

/** The claim may have grown, and Kubernetes does not bind it to a smaller volume. */
export function capacityFor(volume: PersistentVolume, claim: PersistentVolumeClaim): string {
  const has = volume.spec.capacity?.['storage'] ?? '0';
  const wants = claim.spec.resources?.requests?.['storage'] ?? '0';
  return (bytesOf(wants) ?? 0n) > (bytesOf(has) ?? 0n) ? wants : has;
}

export interface ReplacementVolume {
  readonly before: PersistentVolume;
  readonly claim: PersistentVolumeClaim;
  readonly store: string;
  /** The volume's name on the store, and its id. */
  readonly name: string;
  readonly id: string;
  /** The store's identity, if known. */
  readonly identity: string | undefined;
  readonly isReadOnly: boolean;
}

/** Creates the volume, reserved for any claim of that name. With Retain, deleting it does not touch the data. */
export function replacementVolume({
  before,
  claim,
  store,
  name,
  id,
  identity,
  isReadOnly,
}: ReplacementVolume): PersistentVolume {
  const { name: from = '', annotations = {}, labels } = before.metadata;
  const { accessModes = ['ReadWriteOnce'], nodeAffinity, persistentVolumeReclaimPolicy = 'Retain' } = before.spec;
  const policy = annotations[policyBefore] ?? persistentVolumeReclaimPolicy;
  return {
    metadata: {
      name: replacementName(from),
      ...(labels === undefined ? {} : { labels }),
      annotations: { [takenFrom]: from, [policyBefore]: policy, ...claimRecord(claim), ...identityRecord(identity) },
    },
    spec: {
      accessModes,
      volumeMode: 'Filesystem',
      persistentVolumeReclaimPolicy: 'Retain',
      capacity: { storage: capacityFor(before, claim) },
      storageClassName: classNameOf(claim),
      claimRef: claimRefFor(claim),
      csi: {
        driver: fileDriver.name,
        volumeHandle: id,
        volumeAttributes: { store, name },
        ...(isReadOnly ? { readOnly: true } : {}),
      },
      ...(nodeAffinity === undefined ? {} : { nodeAffinity }),
    },
  };
}

/** Reserves a volume for any claim of that name. */
export const claimRefFor = ({ metadata: { namespace = '', name = '' } }: PersistentVolumeClaim) => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  namespace,
  name,
});
