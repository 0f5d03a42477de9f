import type { ObjectReference, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

/** Put on a node by whoever knows that it is off, and that nothing of it still writes. */
export const outOfService = 'node.kubernetes.io/out-of-service';

/** On a claim whose pods may be evicted when only a restart helps them. */
export const restartConsumers = 'stowage.dev/restart-consumers';

/** On a claim: on which nodes its volume is unhealthy. */
export const unhealthyNodes = 'stowage.dev/unhealthy-nodes';

/** A PersistentVolume with it stays until its volume was seen to. */
export const volumeFinalizer = 'stowage.dev/volume';
/** Kubernetes itself looks for it: without it a released volume is said to have failed. */
export const provisionedBy = 'pv.kubernetes.io/provisioned-by';
export const selectedNode = 'volume.kubernetes.io/selected-node';
/** Older than the field for it, and before it where both are there. */
const classAnnotation = 'volume.beta.kubernetes.io/storage-class';
/** On a PersistentVolume: what the store called itself that its volume was made on. A Store of that name may come to mean another place. */
export const storeIdentity = 'stowage.dev/store-identity';
/** On what is made for a Store object. */
export const storeLabel = 'stowage.dev/store';

/** The same for the same claim, so that it cannot be made twice. */
export const volumeNameFor = (uid: string): string => `pvc-${uid}`;

export const classNameOf = ({ metadata, spec }: PersistentVolumeClaim): string =>
  metadata.annotations?.[classAnnotation] ?? spec.storageClassName ?? '';

export const claimReference = ({ metadata: { namespace, name, uid } }: PersistentVolumeClaim): ObjectReference => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  ...(namespace === undefined ? {} : { namespace }),
  ...(name === undefined ? {} : { name }),
  ...(uid === undefined ? {} : { uid }),
});

export const volumeReference = ({ metadata: { name, uid } }: PersistentVolume): ObjectReference => ({
  apiVersion: 'v1',
  kind: 'PersistentVolume',
  ...(name === undefined ? {} : { name }),
  ...(uid === undefined ? {} : { uid }),
});

export const nodeReference = (name: string): ObjectReference => ({ apiVersion: 'v1', kind: 'Node', name });
