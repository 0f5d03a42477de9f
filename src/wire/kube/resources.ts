import type {
  ConfigMap,
  CsiDriver,
  CsiNode,
  CsiStorageCapacity,
  EndpointSlice,
  Endpoints,
  Eviction,
  KubeEvent,
  KubeObject,
  Lease,
  Namespace,
  Node,
  PersistentVolume,
  PersistentVolumeClaim,
  Pod,
  Secret,
  StorageClass,
  SubjectAccessReview,
  TokenRequest,
  TokenReview,
} from './types.ts';

/** A kind of object and its API path. */
export interface Resource<T extends KubeObject> {
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  readonly kind: string;
  readonly namespaced: boolean;
  /** Never set: it only carries the type. */
  readonly type?: T;
}

/**
 * The path of an object or of a subresource such as `status`. Without a name: all objects. Without a namespace: all namespaces.
 */
export interface ObjectPath {
  readonly namespace?: string | undefined;
  readonly name?: string | undefined;
  readonly subresource?: 'status' | 'token' | 'eviction' | undefined;
}

const clusterScoped =
  (group: string, version: string) =>
  <T extends KubeObject>(plural: string, kind: string): Resource<T> => ({
    group,
    version,
    plural,
    kind,
    namespaced: false,
  });
const namespaceScoped =
  (group: string, version: string) =>
  <T extends KubeObject>(plural: string, kind: string): Resource<T> => ({
    group,
    version,
    plural,
    kind,
    namespaced: true,
  });

export const persistentVolumes = clusterScoped('', 'v1')<PersistentVolume>('persistentvolumes', 'PersistentVolume');
export const nodes = clusterScoped('', 'v1')<Node>('nodes', 'Node');
export const namespaces = clusterScoped('', 'v1')<Namespace>('namespaces', 'Namespace');
export const claims = namespaceScoped('', 'v1')<PersistentVolumeClaim>(
  'persistentvolumeclaims',
  'PersistentVolumeClaim',
);
export const pods = namespaceScoped('', 'v1')<Pod>('pods', 'Pod');
export const secrets = namespaceScoped('', 'v1')<Secret>('secrets', 'Secret');
export const configMaps = namespaceScoped('', 'v1')<ConfigMap>('configmaps', 'ConfigMap');
export const endpoints = namespaceScoped('', 'v1')<Endpoints>('endpoints', 'Endpoints');
export const endpointSlices = namespaceScoped('discovery.k8s.io', 'v1')<EndpointSlice>(
  'endpointslices',
  'EndpointSlice',
);
export const storageClasses = clusterScoped('storage.k8s.io', 'v1')<StorageClass>('storageclasses', 'StorageClass');
export const csiNodes = clusterScoped('storage.k8s.io', 'v1')<CsiNode>('csinodes', 'CSINode');
export const csiDrivers = clusterScoped('storage.k8s.io', 'v1')<CsiDriver>('csidrivers', 'CSIDriver');
export const csiStorageCapacities = namespaceScoped('storage.k8s.io', 'v1')<CsiStorageCapacity>(
  'csistoragecapacities',
  'CSIStorageCapacity',
);
export const leases = namespaceScoped('coordination.k8s.io', 'v1')<Lease>('leases', 'Lease');
export const events = namespaceScoped('events.k8s.io', 'v1')<KubeEvent>('events', 'Event');
export const tokenReviews = clusterScoped('authentication.k8s.io', 'v1')<TokenReview>('tokenreviews', 'TokenReview');
export const subjectAccessReviews = clusterScoped('authorization.k8s.io', 'v1')<SubjectAccessReview>(
  'subjectaccessreviews',
  'SubjectAccessReview',
);
/** A subresource of service accounts, in another group. */
export const tokenRequests = namespaceScoped('', 'v1')<TokenRequest>('serviceaccounts', 'TokenRequest');
/** A subresource of pods, in another group. */
export const evictions = namespaceScoped('', 'v1')<Eviction>('pods', 'Eviction');

export const apiVersionOf = ({ group, version }: Resource<KubeObject>): string =>
  group === '' ? version : `${group}/${version}`;

/** Rejects names that would change the path. */
export function pathOf(resource: Resource<KubeObject>, { namespace, name, subresource }: ObjectPath): string {
  const root = resource.group === '' ? '/api' : '/apis';
  const where = resource.namespaced && namespace !== undefined ? ['namespaces', namespace] : [];
  const segments = [name, subresource].filter((one) => one !== undefined);
  return [root, ...[...apiVersionOf(resource).split('/'), ...where, resource.plural, ...segments].map(segment)].join(
    '/',
  );
}

function segment(text: string): string {
  if (text === '' || text === '.' || text === '..') throw new TypeError(`“${text}” is not a valid name`);
  return encodeURIComponent(text);
}
