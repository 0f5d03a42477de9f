import { type Attempt, dryRuns, merge } from './chart-accounts.ts';
import { type ChartFixture, namespace } from './chart-fixture.ts';

const { create, replace, remove, patch } = dryRuns;

interface AddressOptions {
  readonly name: string;
  readonly inNamespace?: string;
  /** The Service that the addresses belong to. */
  readonly service?: string;
  readonly ips?: readonly string[];
  readonly port?: number;
}

function endpoints({ name, inNamespace = namespace, ips = ['10.1.2.3'], port = 8443 }: AddressOptions): object {
  const targetRef = { kind: 'Pod', namespace: inNamespace, name: 'held' };
  return {
    apiVersion: 'v1',
    kind: 'Endpoints',
    metadata: { name, namespace: inNamespace },
    subsets: [{ addresses: ips.map((ip) => ({ ip, targetRef })), ports: [{ name: 'https', port }] }],
  };
}

function slice(options: AddressOptions): object {
  const { name, inNamespace = namespace, service = 'stowage', ips = ['10.1.2.3'], port = 8443 } = options;
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    addressType: 'IPv4',
    metadata: { name, namespace: inNamespace, labels: { 'kubernetes.io/service-name': service } },
    endpoints: ips.map((ip) => ({ addresses: [ip] })),
    ports: [{ name: 'https', port, protocol: 'TCP' }],
  };
}

export const foreignAddresses: readonly object[] = [
  endpoints({ name: 'held', inNamespace: 'default' }),
  slice({ name: 'held', inNamespace: 'default' }),
  // No node has this label, so the pod never runs.
  {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'held', namespace: 'default' },
    spec: { nodeSelector: { nowhere: 'true' }, containers: [{ name: 'main', image: 'none-such' }] },
  },
];

const denials = {
  endpoints: "Stowage's controller may only have the Endpoints stowage in its own namespace",
  address:
    "Stowage's controller may only give the Endpoints stowage one address, with a reference to a pod of its own namespace, and its own port",
  slices: "Stowage's controller may only have the EndpointSlice stowage-leader in its own namespace",
  sliceAddress:
    "Stowage's controller may only give its EndpointSlice one address for the Service stowage, and its own port",
  evictionPlaces: "Stowage's controller may not evict pods of Kubernetes' own namespaces and of Stowage's",
  evictions: "Stowage's controller may only evict a pod by its uid, and with the grace period that the pod has",
} as const;

const replaceAttempt = (object: object, denial: string): Attempt => ({ words: replace, object, denial });
const createAttempt = (object: object, denial: string): Attempt => ({ words: create, object, denial });
const [sliceKind, leader] = ['endpointslice', slice({ name: 'stowage-leader' })];
const labels = merge({ metadata: { labels: { other: 'yes' } } });
const twoAddresses = { ips: ['10.1.2.3', '10.1.2.4'] };

export const addressAttempts: Readonly<Record<string, Attempt>> = {
  'writes the leader’s address to its EndpointSlice': { words: replace, object: leader },
  'writes the leader’s address to its Endpoints': { words: replace, object: endpoints({ name: 'stowage' }) },
  'creates an EndpointSlice with another name': createAttempt(slice({ name: 'wanted' }), denials.slices),
  'creates Endpoints with another name': createAttempt(endpoints({ name: 'stowage-nfs' }), denials.endpoints),
  'gives its EndpointSlice to another Service': replaceAttempt(
    slice({ name: 'stowage-leader', service: 'stowage-nfs' }),
    denials.sliceAddress,
  ),
  'gives its EndpointSlice another port': replaceAttempt(
    slice({ name: 'stowage-leader', port: 22 }),
    denials.sliceAddress,
  ),
  'gives its EndpointSlice two addresses': replaceAttempt(
    slice({ name: 'stowage-leader', ...twoAddresses }),
    denials.sliceAddress,
  ),
  'gives its Endpoints another port': replaceAttempt(endpoints({ name: 'stowage', port: 22 }), denials.address),
  'gives its Endpoints two addresses': replaceAttempt(endpoints({ name: 'stowage', ...twoAddresses }), denials.address),
  'gives its Endpoints an address that is not a pod’s': replaceAttempt(
    {
      apiVersion: 'v1',
      kind: 'Endpoints',
      metadata: { name: 'stowage', namespace },
      subsets: [{ addresses: [{ ip: '10.1.2.3' }], ports: [{ name: 'https', port: 8443 }] }],
    },
    denials.address,
  ),
  'deletes its EndpointSlice': { words: [...remove, sliceKind, 'stowage-leader', `--namespace=${namespace}`] },
  'deletes its Endpoints': { words: [...remove, 'endpoints', 'stowage', `--namespace=${namespace}`] },
};

/** Attempts by an account with all rights. */
export const addressesOfFullRights: Readonly<Record<string, Attempt>> = {
  'creates its EndpointSlice in another namespace': createAttempt(
    slice({ name: 'stowage-leader', inNamespace: 'default' }),
    denials.slices,
  ),
  'creates its Endpoints in another namespace': createAttempt(
    endpoints({ name: 'stowage', inNamespace: 'default' }),
    denials.endpoints,
  ),
  ...Object.fromEntries(
    [[sliceKind, denials.slices] as const, ['endpoints', denials.endpoints] as const].flatMap(([kind, denial]) => [
      [`changes a foreign ${kind}`, { words: [...patch, kind, 'held', '--namespace=default', ...labels], denial }],
      [`deletes a foreign ${kind}`, { words: [...remove, kind, 'held', '--namespace=default'], denial }],
    ]),
  ),
};

/** The API server evaluates the policy before it looks up the pod. */
const evict = (inNamespace: string, deleteOptions: object): Pick<Attempt, 'words' | 'object'> => ({
  words: ['create', '--raw', `/api/v1/namespaces/${inNamespace}/pods/held/eviction?dryRun=All`],
  object: {
    apiVersion: 'policy/v1',
    kind: 'Eviction',
    metadata: { name: 'held', namespace: inNamespace },
    deleteOptions: { dryRun: ['All'], ...deleteOptions },
  },
});

export async function evictionAttempts({ cluster }: ChartFixture): Promise<Readonly<Record<string, Attempt>>> {
  const words = ['get', 'pod', 'held', '--namespace=default', '--output=jsonpath={.metadata.uid}'];
  const preconditions = { uid: await cluster.kubectl(...words) };
  return {
    'evicts a pod': evict('default', { preconditions }),
    'evicts a pod by its name, without a uid': { ...evict('default', {}), denial: denials.evictions },
    'evicts a pod without a grace period': {
      ...evict('default', { preconditions, gracePeriodSeconds: 0 }),
      denial: denials.evictions,
    },
    'evicts a pod in kube-system': { ...evict('kube-system', { preconditions }), denial: denials.evictionPlaces },
    'evicts a pod in Stowage’s namespace': { ...evict(namespace, { preconditions }), denial: denials.evictionPlaces },
  };
}
