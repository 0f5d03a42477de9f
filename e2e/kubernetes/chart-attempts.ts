import { type Attempt, dryRuns, merge } from './chart-accounts.ts';
import {
  addressAttempts,
  addressesOfFullRights,
  evictionAttempts,
  foreignAddresses,
} from './chart-attempts-addresses.ts';
import { type ChartFixture, namespace } from './chart-fixture.ts';

const { create, replace, remove, patch } = dryRuns;
const selectedNode = 'volume.kubernetes.io/selected-node';
const unhealthyNodes = 'stowage.dev/unhealthy-nodes';

const foreignNames = {
  claim: {
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: {
      name: 'held',
      namespace: 'default',
      labels: { mine: 'yes' },
      annotations: { [selectedNode]: 'node-1', mine: 'yes' },
    },
    // A class without a provisioner.
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: 'none-such',
      resources: { requests: { storage: '1Gi' } },
    },
  },
  volume: volume('held', { hostPath: { path: '/' } }),
  storageClass: storageClass('held'),
  configMap: configMap('held', 'default'),
  secret: secret({ name: 'held', inNamespace: 'default', type: 'Opaque' }),
} as const;

/** Objects that do not belong to Stowage. They are deleted at the end. */
export async function foreignObjects({ cluster }: ChartFixture): Promise<AsyncDisposable> {
  await cluster.apply(...Object.values(foreignNames), ...foreignAddresses);
  return {
    [Symbol.asyncDispose]: async () => {
      const kinds = ['pvc', 'pv', 'storageclass', 'configmap', 'secret', 'endpoints', 'endpointslice', 'pod'];
      const held = kinds.map((kind) => `${kind}/held`);
      await cluster.kubectl('delete', ...held, '--namespace=default', '--timeout=60s');
    },
  };
}

function volume(name: string, source: object): object {
  const spec = { capacity: { storage: '1Gi' }, accessModes: ['ReadWriteOnce'], ...source };
  return { apiVersion: 'v1', kind: 'PersistentVolume', metadata: { name }, spec };
}

function storageClass(name: string): object {
  return { apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass', metadata: { name }, provisioner: 'other' };
}

function configMap(name: string, inNamespace: string): object {
  return { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace: inNamespace } };
}

interface SecretOptions {
  readonly name: string;
  readonly inNamespace?: string;
  readonly type: string;
  readonly annotations?: object;
}

function secret({ name, inNamespace: where = namespace, type, annotations = {} }: SecretOptions): object {
  const stringData = type === 'kubernetes.io/tls' ? { 'tls.crt': 'x', 'tls.key': 'x' } : {};
  return { apiVersion: 'v1', kind: 'Secret', metadata: { name, namespace: where, annotations }, type, stringData };
}

const denials = {
  drivers: "Stowage's controller may only have PersistentVolumes of its own drivers",
  secretNames: "Stowage's controller may not name Secrets in PersistentVolumes",
  classes: "Stowage's controller may only have StorageClasses of its own drivers",
  spec: "Stowage's controller may note things on claims, and not change what they ask for",
  claims: "Stowage's controller may not change owners, finalizers and labels of claims",
  annotations:
    "Stowage's controller may remove the selected node from claims and note unhealthy nodes on them, and change no other annotation",
  secrets: "Stowage's controller may only have the Secret stowage-tls in its own namespace, of type kubernetes.io/tls",
  maps: "Stowage's controller may only have the ConfigMaps stowage-ca and stowage-nodes in its own namespace",
  agents: "Stowage's agents change nothing in the cluster",
} as const;

const claim = [...patch, 'pvc', 'held', '--namespace=default'];
const status = [...claim, '--subresource=status'];
const csi = { driver: 'file.stowage.dev', volumeHandle: 'x' };
const token = { name: 'token', namespace: 'kube-system' };
const owner = { apiVersion: 'v1', kind: 'ConfigMap', name: 'held', uid: '4d0b8d1c-5b1f-4b8e-9c53-0d4d0f1d3c11' };
const tokenType = 'kubernetes.io/service-account-token';
const adopterAnnotations = { 'kubernetes.io/service-account.name': 'stowage-adopter' };
const unhealthyPatch = {
  type: 'stowage.dev/Healthy',
  status: 'False',
  reason: 'Test',
  lastTransitionTime: '2026-01-01T00:00:00Z',
};

const labels = { metadata: { labels: { other: 'yes' } } };

const claimAttempts = (what: string, words: readonly string[]): Readonly<Record<string, Attempt>> =>
  Object.fromEntries(
    Object.entries({
      'an owner': [{ ownerReferences: [owner] }, denials.claims],
      'no finalizers': [{ finalizers: null }, denials.claims],
      'one more label': [labels.metadata, denials.claims],
      'a label less': [{ labels: null }, denials.claims],
      'another node': [{ annotations: { [selectedNode]: 'node-2' } }, denials.annotations],
      'one more annotation': [{ annotations: { other: 'yes' } }, denials.annotations],
      'another annotation': [{ annotations: { mine: 'no' } }, denials.annotations],
      'no annotations': [{ annotations: null }, denials.annotations],
    } as const).map(([change, [metadata, denial]]) => [
      `gives ${what} ${change}`,
      { words: [...words, ...merge({ metadata })], denial },
    ]),
  );

/** Attempts by the controller's account with its own rights. */
export async function controllerAttempts(fixture: ChartFixture): Promise<Readonly<Record<string, Attempt>>> {
  return { ...(await objectAttempts(fixture)), ...addressAttempts, ...(await evictionAttempts(fixture)) };
}

async function objectAttempts({ namespacedKubectl }: ChartFixture): Promise<Readonly<Record<string, Attempt>>> {
  const getObject = async (...what: readonly string[]): Promise<object> =>
    JSON.parse(await namespacedKubectl('get', ...what, '--output=json'));
  const secretRefs = ['controllerPublish', 'controllerExpand', 'nodeStage', 'nodePublish', 'nodeExpand'];
  return {
    'creates a volume of its driver': { words: create, object: volume('wanted', { csi }) },
    'creates a volume with a host path': {
      words: create,
      object: volume('wanted', { hostPath: { path: '/' } }),
      denial: denials.drivers,
    },
    'creates a volume of another driver': {
      words: create,
      object: volume('wanted', { csi: { ...csi, driver: 'other' } }),
      denial: denials.drivers,
    },
    ...Object.fromEntries(
      secretRefs.map((name) => [
        `creates a volume with a Secret for ${name}`,
        {
          words: create,
          object: volume('wanted', { csi: { ...csi, [`${name}SecretRef`]: token } }),
          denial: denials.secretNames,
        },
      ]),
    ),
    'changes a foreign volume': { words: [...patch, 'pv', 'held', ...merge(labels)], denial: denials.drivers },
    'deletes a foreign volume': { words: [...remove, 'pv', 'held'], denial: denials.drivers },
    'creates a foreign class': { words: create, object: storageClass('wanted'), denial: denials.classes },
    'deletes a foreign class': { words: [...remove, 'storageclass', 'held'], denial: denials.classes },
    'removes the selected node from a claim': {
      words: [...claim, ...merge({ metadata: { annotations: { [selectedNode]: null } } })],
    },
    'changes the spec of a claim': {
      words: [...claim, ...merge({ spec: { volumeName: 'held' } })],
      denial: denials.spec,
    },
    ...claimAttempts('a claim', claim),
    'renews the certificate': { words: replace, object: await getObject('secret', 'stowage-tls') },
    'deletes the certificate': { words: [...remove, 'secret', 'stowage-tls', `--namespace=${namespace}`] },
    'creates a Secret for a token of another account': {
      words: create,
      object: secret({ name: 'wanted', type: tokenType, annotations: adopterAnnotations }),
      denial: denials.secrets,
    },
    'creates a token Secret with the name of the certificate': {
      words: create,
      object: secret({ name: 'stowage-tls', type: tokenType, annotations: adopterAnnotations }),
      denial: denials.secrets,
    },
    'creates a certificate with another name': {
      words: create,
      object: secret({ name: 'wanted', type: 'kubernetes.io/tls' }),
      denial: denials.secrets,
    },
    'publishes the certificate': { words: replace, object: await getObject('configmap', 'stowage-ca') },
    'records the machine of a node': {
      words: [...patch, 'configmap', 'stowage-nodes', `--namespace=${namespace}`, ...merge({ data: { x: 'y z' } })],
    },
    'creates another ConfigMap': { words: create, object: configMap('wanted', namespace), denial: denials.maps },
  };
}

/**
 * Attempts by an account with all rights, so that the policy is tested whatever the roles allow. kubectl must read an
 * object before it can patch its status.
 */
export const controllerWithAllRights: Readonly<Record<string, Attempt>> = {
  'sets the health condition and the unhealthy nodes of a claim': {
    words: [
      ...status,
      ...merge({ metadata: { annotations: { [unhealthyNodes]: 'node-1' } }, status: { conditions: [unhealthyPatch] } }),
    ],
  },
  'sets the capacity of a claim': { words: [...status, ...merge({ status: { capacity: { storage: '1Gi' } } })] },
  ...claimAttempts('a claim, through its status,', status),
  'changes a foreign class': { words: [...patch, 'storageclass', 'held', ...merge(labels)], denial: denials.classes },
  'creates a claim': {
    words: create,
    object: { ...foreignNames.claim, metadata: { name: 'wanted', namespace: 'default' } },
    denial: denials.spec,
  },
  'deletes a claim': { words: [...remove, 'pvc', 'held', '--namespace=default'], denial: denials.spec },
  'creates a certificate in another namespace': {
    words: create,
    object: secret({ name: 'stowage-tls', inNamespace: 'default', type: 'kubernetes.io/tls' }),
    denial: denials.secrets,
  },
  'deletes another Secret': {
    words: [...remove, 'secret', 'held', '--namespace=default'],
    denial: denials.secrets,
  },
  'publishes a certificate in another namespace': {
    words: create,
    object: configMap('stowage-ca', 'default'),
    denial: denials.maps,
  },
  'changes a foreign ConfigMap': {
    words: [...patch, 'configmap', 'held', '--namespace=default', ...merge(labels)],
    denial: denials.maps,
  },
  'deletes a foreign ConfigMap': {
    words: [...remove, 'configmap', 'held', '--namespace=default'],
    denial: denials.maps,
  },
  ...addressesOfFullRights,
};

export const agentWithAllRights: Readonly<Record<string, Attempt>> = {
  'queries its own identity': { words: ['auth', 'whoami'] },
  'creates an object': { words: create, object: configMap('wanted', 'default'), denial: denials.agents },
  'changes an object': {
    words: [...patch, 'configmap', 'held', '--namespace=default', ...merge(labels)],
    denial: denials.agents,
  },
  'sets the status of an object': {
    words: [...status, ...merge({ status: { conditions: [unhealthyPatch] } })],
    denial: denials.agents,
  },
  'deletes an object': { words: [...remove, 'configmap', 'held', '--namespace=default'], denial: denials.agents },
  'uses the API server’s service proxy': {
    words: ['get', '--raw', `/api/v1/namespaces/${namespace}/services/https:stowage:443/proxy/`],
    denial: denials.agents,
  },
};
