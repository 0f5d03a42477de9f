import type { ObjectReference, PersistentVolume, PersistentVolumeClaim } from '#wire/kube/types.ts';

/** The taint by which an administrator declares that a node is off and no longer writes. */
export const outOfServiceTaint = 'node.kubernetes.io/out-of-service';

/** On a claim: allows the controller to evict its pods if only a restart helps. */
export const restartConsumersAnnotation = 'stowage.dev/restart-consumers';

/** On a claim: on which nodes its volume is unhealthy. */
export const unhealthyNodesAnnotation = 'stowage.dev/unhealthy-nodes';

/** Keeps a PersistentVolume until its volume is deleted or labelled as retained. */
export const volumeFinalizer = 'stowage.dev/volume';
/** Kubernetes marks a released PersistentVolume without this annotation as failed. */
export const provisionedByAnnotation = 'pv.kubernetes.io/provisioned-by';
export const selectedNodeAnnotation = 'volume.kubernetes.io/selected-node';
/** The annotation is older than the field `storageClassName`, and takes precedence. */
const classAnnotation = 'volume.beta.kubernetes.io/storage-class';
/** On a PersistentVolume: the identity of its volume's store. A Store of that name may later be at another location. */
export const storeIdentityAnnotation = 'stowage.dev/store-identity';
/** On objects that the controller creates for a Store object. */
export const storeLabel = 'stowage.dev/store';

/** Derived from the claim's UID, so that the PersistentVolume cannot be created twice. */
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
