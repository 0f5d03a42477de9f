import type { Clock } from '#base/clock.ts';
import { driverNamed, drivers } from '#core/csi-drivers.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { claims, nodes, persistentVolumes, storageClasses } from '#wire/kube/resources.ts';
import type { Node, PersistentVolume, PersistentVolumeClaim, StorageClass } from '#wire/kube/types.ts';
import { type Cache, createCache, identityOf } from './machinery/cache.ts';
import { classNameOf, provisionedByAnnotation, storeLabel, unhealthyNodesAnnotation } from './names.ts';
import { type StoreObject, storeObjects } from './store-object.ts';

/** The shared caches of the controllers, one for each kind. */
export interface Caches {
  /** Indexes: `uid`; `waiting`, the class name of claims without a volume. */
  readonly claims: Cache<PersistentVolumeClaim>;
  /**
   * PersistentVolumes of our drivers, and unbound PersistentVolumes of other drivers. Indexes: `handle`; `claim`, a claim's uid; `free`,
   * the class of an unbound PersistentVolume.
   */
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
        metadata: { ...identityOf({ metadata }), ...pick(metadata, 'generation', 'deletionTimestamp') },
        spec,
        ...(status === undefined ? {} : { status }),
      }),
    }),
    nodes: createCache({
      client,
      clock,
      resource: nodes,
      trim: ({ metadata, spec }) => ({
        metadata: { ...identityOf({ metadata }), ...pick(metadata, 'labels') },
        spec: pick(spec ?? {}, 'taints', 'unschedulable'),
      }),
    }),
  };
}

/** Unbound: Kubernetes may bind it to a claim of its class. */
const isFree = ({ spec }: PersistentVolume): boolean => spec.claimRef?.uid === undefined;

/** kubectl's own annotation, which can be long. */
const lastAppliedAnnotation = 'kubectl.kubernetes.io/last-applied-configuration';

/** Name templates need all fields of a claim without a volume. A bound claim, as most are, needs only a few fields. */
function trimClaim({ metadata, spec, status }: PersistentVolumeClaim): PersistentVolumeClaim {
  const commonMetadata = { ...identityOf({ metadata }), ...pick(metadata, 'deletionTimestamp') };
  const { resources, volumeName } = spec;
  const sizes = { resources: pick(resources ?? {}, 'requests') };
  const state = pick(
    status ?? {},
    'phase',
    'capacity',
    'conditions',
    'allocatedResources',
    'allocatedResourceStatuses',
  );
  if (volumeName !== undefined && volumeName !== '') {
    const annotations = pick(metadata.annotations ?? {}, unhealthyNodesAnnotation);
    const boundSpec = { volumeName, ...sizes, ...pick(spec, 'volumeMode') };
    return { metadata: { ...commonMetadata, annotations }, spec: boundSpec, status: state };
  }
  const { [lastAppliedAnnotation]: _, ...annotations } = metadata.annotations ?? {};
  return {
    metadata: { ...commonMetadata, annotations, ...pick(metadata, 'labels') },
    spec: {
      ...sizes,
      ...pick(spec, 'accessModes', 'storageClassName', 'volumeMode', 'selector'),
      ...pick(spec, 'dataSource', 'dataSourceRef'),
    },
    status: state,
  };
}

const ourDrivers: ReadonlySet<string> = new Set(drivers.map(({ name }) => name));

function trimVolume(full: PersistentVolume): PersistentVolume | undefined {
  const { metadata, spec, status } = full;
  if (!ourDrivers.has(spec.csi?.driver ?? '')) {
    if (!isFree(full)) return undefined;
    return { metadata: identityOf(full), spec: pick(spec, 'storageClassName', 'claimRef') };
  }
  const { driver = '', volumeHandle = '', volumeAttributes = {} } = spec.csi ?? {};
  const commonSpec = pick(spec, 'capacity', 'claimRef', 'storageClassName', 'persistentVolumeReclaimPolicy');
  return {
    metadata: {
      ...identityOf(full),
      ...pick(metadata, 'deletionTimestamp', 'finalizers'),
      annotations: pick(metadata.annotations ?? {}, provisionedByAnnotation),
    },
    spec: {
      ...commonSpec,
      csi: { driver, volumeHandle, volumeAttributes },
      // The affinity names the node of the volume.
      ...(driverNamed(driver)?.topology === 'node' ? pick(spec, 'nodeAffinity') : {}),
    },
    status: pick(status ?? {}, 'phase'),
  };
}

const trimClass = (full: StorageClass): StorageClass => ({
  metadata: { ...identityOf(full), ...pick(full.metadata, 'labels', 'annotations', 'ownerReferences') },
  ...pick(full, 'provisioner', 'parameters', 'reclaimPolicy', 'volumeBindingMode', 'allowVolumeExpansion'),
  ...pick(full, 'mountOptions', 'allowedTopologies'),
});

/** Copies the keys that are present. */
function pick<T extends object, K extends keyof T>(from: T, ...keys: readonly K[]): Pick<T, K> {
  // A loop for speed: it runs several times for every change of every claim and PersistentVolume in the cluster.
  const found: Partial<Pick<T, K>> = {};
  for (const key of keys) if (from[key] !== undefined) found[key] = from[key];
  return found as Pick<T, K>;
}
