import { ownLabel } from './labels.ts';

/** Labels that Stowage sets on a volume that it creates for a PersistentVolumeClaim. */
export const claimLabels = {
  namespace: ownLabel('claim-namespace'),
  name: ownLabel('claim-name'),
  uid: ownLabel('claim-uid'),
  /** The instance id of the cluster. */
  cluster: ownLabel('cluster'),
  /** Set by the CSI Controller service, which does not know the claim's UID. */
  persistentVolume: ownLabel('persistent-volume'),
} as const;
