import { ownLabel } from './labels.ts';

/** Labels that Stowage itself puts on a volume that it makes for a claim of Kubernetes. */
export const claimLabels = {
  namespace: ownLabel('claim-namespace'),
  name: ownLabel('claim-name'),
  uid: ownLabel('claim-uid'),
  /** The instance of the cluster. */
  cluster: ownLabel('cluster'),
  /** By the CSI Controller service, which does not know the UID of a claim. */
  persistentVolume: ownLabel('persistent-volume'),
} as const;
