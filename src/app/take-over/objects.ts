import { bytesOf } from '#base/quantity.ts';
import { classNameOf, storeIdentity } from '#controllers/names.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import type { PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

/** On the PersistentVolume of Stowage's, until it is finished: the one before it. */
export const takenFrom = 'stowage.dev/taken-over-from';
/** Likewise: the claim as it was, since between two PersistentVolumes there is a moment without one. */
export const claimAsWas = 'stowage.dev/taken-over-claim';
/** On both: what shall become of the data when all of this is over and the claim is deleted. */
export const policyBefore = 'stowage.dev/reclaim-policy';

/** The same for the same one, so that it cannot be made twice. */
export const nameAfter = (volume: string): string => `${volume}-stowage`;

/** Kubernetes and provisioners say with them how a claim came to its volume. */
const passing = /^(pv\.kubernetes\.io\/|volume\.kubernetes\.io\/|volume\.beta\.kubernetes\.io\/storage-provisioner$)/;

/** The claim without what only this one has: it can be made again, for any volume. */
export function claimWithout({ metadata, spec }: PersistentVolumeClaim): PersistentVolumeClaim {
  const { name = '', namespace = '', labels, annotations = {}, ownerReferences } = metadata;
  const { volumeName: _, ...rest } = spec;
  const kept = Object.entries(annotations).filter(([key]) => !passing.test(key));
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

export const withClaim = (claim: PersistentVolumeClaim): Readonly<Record<string, string>> => ({
  [claimAsWas]: JSON.stringify(claimWithout(claim)),
});

export const withIdentity = (identity: string | undefined): Readonly<Record<string, string>> =>
  identity === undefined ? {} : { [storeIdentity]: identity };

export const claimIn = ({ metadata }: PersistentVolume): PersistentVolumeClaim | undefined => {
  const text = metadata.annotations?.[claimAsWas];
  return text === undefined ? undefined : (JSON.parse(text) as PersistentVolumeClaim);
};

/** What is taken away when nothing has to be remembered any more. */
export const nothingRemembered = { [takenFrom]: null, [claimAsWas]: null, [policyBefore]: null };

/** The claim may have grown, and a volume that is smaller is not given to it. */
export function capacityFor(volume: PersistentVolume, claim: PersistentVolumeClaim): string {
  const has = volume.spec.capacity?.['storage'] ?? '0';
  const wants = claim.spec.resources?.requests?.['storage'] ?? '0';
  return (bytesOf(wants) ?? 0n) > (bytesOf(has) ?? 0n) ? wants : has;
}

export interface After {
  readonly before: PersistentVolume;
  readonly claim: PersistentVolumeClaim;
  readonly store: string;
  /** The volume's name on the store, and its id. */
  readonly name: string;
  readonly id: string;
  /** What the store says that it is, if that is known. */
  readonly identity: string | undefined;
  readonly isReadOnly: boolean;
}

/** It waits for the claim of that name, whoever makes it. Nothing that happens to it touches the data. */
export function volumeAfter({ before, claim, store, name, id, identity, isReadOnly }: After): PersistentVolume {
  const { name: from = '', annotations = {}, labels } = before.metadata;
  const { accessModes = ['ReadWriteOnce'], nodeAffinity, persistentVolumeReclaimPolicy = 'Retain' } = before.spec;
  const policy = annotations[policyBefore] ?? persistentVolumeReclaimPolicy;
  return {
    metadata: {
      name: nameAfter(from),
      ...(labels === undefined ? {} : { labels }),
      annotations: { [takenFrom]: from, [policyBefore]: policy, ...withClaim(claim), ...withIdentity(identity) },
    },
    spec: {
      accessModes,
      volumeMode: 'Filesystem',
      persistentVolumeReclaimPolicy: 'Retain',
      capacity: { storage: capacityFor(before, claim) },
      storageClassName: classNameOf(claim),
      claimRef: prebound(claim),
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

/** For the claim of that name, and no other; whichever has it. */
export const prebound = ({ metadata: { namespace = '', name = '' } }: PersistentVolumeClaim) => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  namespace,
  name,
});
