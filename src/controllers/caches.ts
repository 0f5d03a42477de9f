import type { Clock } from '#base/clock.ts';
import { driverNamed, drivers } from '#core/csi-drivers.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { claims, nodes, persistentVolumes, storageClasses } from '#wire/kube/resources.ts';
import type { Node, PersistentVolume, PersistentVolumeClaim, StorageClass } from '#wire/kube/types.ts';
import { type Cache, createCache, identityOf } from './machinery/cache.ts';
import { classNameOf, provisionedBy, storeLabel, unhealthyNodes } from './names.ts';
import { type StoreObject, storeObjects } from './store-object.ts';

/** The shared caches of the controllers, one for each kind. */
export interface Caches {
  /** Indexes: `uid`; `waiting`, the class name of claims without a volume. */
  readonly claims: Cache<PersistentVolumeClaim>;
  /** Those of our drivers, and unbound ones of others. Indexes: `handle`; `claim`, a claim's uid; `free`, the class of unbound ones. */
  readonly volumes: Cache<PersistentVolume>;
  /** Index: `store`, of classes that were created for a Store object. */
  readonly classes: Cache<StorageClass>;
  readonly stores: Cache<StoreObject>;
  readonly nodes: Cache<Node>;
}

export function createCaches(client: KubeClient, clock: Clock): Caches {
  return {
    claims: createCache({
      client,
      clock,
      resource: claims,
      trim: trimClaim,
      indexes: {
        uid: ({ metadata: { uid = '' } }) => [uid],
        waiting: (claim) => (claim.spec.volumeName === undefined ? [classNameOf(claim)] : []),
      },
    }),
    volumes: createCache({
      client,
      clock,
      resource: persistentVolumes,
      trim: trimVolume,
      indexes: {
        handle: ({ spec: { csi } }) => (csi === undefined ? [] : [csi.volumeHandle]),
        claim: ({ spec: { claimRef } }) => (claimRef?.uid === undefined ? [] : [claimRef.uid]),
        free: (volume) => (isFree(volume) ? [volume.spec.storageClassName ?? ''] : []),
      },
    }),
    classes: createCache({
      client,
      clock,
      resource: storageClasses,
      trim: trimClass,
      indexes: {
        store: ({ metadata: { labels } }) => (labels?.[storeLabel] === undefined ? [] : [labels[storeLabel]]),
      },
    }),
    stores: createCache({
      client,
      clock,
      resource: storeObjects,
      trim: ({ metadata, spec, status }) => ({
        metadata: { ...identityOf({ metadata }), ...picked(metadata, 'generation', 'deletionTimestamp') },
        spec,
        ...(status === undefined ? {} : { status }),
      }),
    }),
    nodes: createCache({
      client,
      clock,
      resource: nodes,
      trim: ({ metadata, spec }) => ({
        metadata: { ...identityOf({ metadata }), ...picked(metadata, 'labels') },
        spec: picked(spec ?? {}, 'taints', 'unschedulable'),
      }),
    }),
  };
}

/** Unbound: Kubernetes may bind it to a claim of its class. */
const isFree = ({ spec }: PersistentVolume): boolean => spec.claimRef?.uid === undefined;

/** kubectl's own annotation, which can be long. */
const lastApplied = 'kubectl.kubernetes.io/last-applied-configuration';

/** Name templates need all fields of a claim without a volume. Of the many bound claims only a few fields are needed. */
function trimClaim({ metadata, spec, status }: PersistentVolumeClaim): PersistentVolumeClaim {
  const kept = { ...identityOf({ metadata }), ...picked(metadata, 'deletionTimestamp') };
  const { resources, volumeName } = spec;
  const sizes = { resources: picked(resources ?? {}, 'requests') };
  const state = picked(
    status ?? {},
    'phase',
    'capacity',
    'conditions',
    'allocatedResources',
    'allocatedResourceStatuses',
  );
  if (volumeName !== undefined && volumeName !== '') {
    const annotations = picked(metadata.annotations ?? {}, unhealthyNodes);
    const about = { volumeName, ...sizes, ...picked(spec, 'volumeMode') };
    return { metadata: { ...kept, annotations }, spec: about, status: state };
  }
  const { [lastApplied]: _, ...annotations } = metadata.annotations ?? {};
  return {
    metadata: { ...kept, annotations, ...picked(metadata, 'labels') },
    spec: {
      ...sizes,
      ...picked(spec, 'accessModes', 'storageClassName', 'volumeMode', 'selector'),
      ...picked(spec, 'dataSource', 'dataSourceRef'),
    },
    status: state,
  };
}

const ours: ReadonlySet<string> = new Set(drivers.map(({ name }) => name));

function trimVolume(full: PersistentVolume): PersistentVolume | undefined {
  const { metadata, spec, status } = full;
  if (!ours.has(spec.csi?.driver ?? '')) {
    if (!isFree(full)) return undefined;
    return { metadata: identityOf(full), spec: picked(spec, 'storageClassName', 'claimRef') };
  }
  const { driver = '', volumeHandle = '', volumeAttributes = {} } = spec.csi ?? {};
  const about = picked(spec, 'capacity', 'claimRef', 'storageClassName', 'persistentVolumeReclaimPolicy');
  return {
    metadata: {
      ...identityOf(full),
      ...picked(metadata, 'deletionTimestamp', 'finalizers'),
      annotations: picked(metadata.annotations ?? {}, provisionedBy),
    },
    spec: {
      ...about,
      csi: { driver, volumeHandle, volumeAttributes },
      // The affinity names the node of the volume.
      ...(driverNamed(driver)?.topology === 'node' ? picked(spec, 'nodeAffinity') : {}),
    },
    status: picked(status ?? {}, 'phase'),
  };
}

const trimClass = (full: StorageClass): StorageClass => ({
  metadata: { ...identityOf(full), ...picked(full.metadata, 'labels', 'annotations', 'ownerReferences') },
  ...picked(full, 'provisioner', 'parameters', 'reclaimPolicy', 'volumeBindingMode', 'allowVolumeExpansion'),
  ...picked(full, 'mountOptions', 'allowedTopologies'),
});

/** Copies the keys that are present. */
function picked<T extends object, K extends keyof T>(from: T, ...keys: readonly K[]): Pick<T, K> {
  // A loop for speed: it runs several times for every change of every claim and PersistentVolume in the cluster.
  const found: Partial<Pick<T, K>> = {};
  for (const key of keys) if (from[key] !== undefined) found[key] = from[key];
  return found as Pick<T, K>;
}
