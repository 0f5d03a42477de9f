import { drivers } from '#core/csi-drivers.ts';
import {
  core,
  discovery,
  getListWatch,
  listWatch,
  ownNamespace,
  type RbacRole,
  storage,
  stowage,
} from './rbac-role.ts';
import { adopter, everybody, readRules, viewer } from './rbac-users.ts';

const controller: RbacRole = {
  name: 'stowage-controller',
  title: 'Controller',
  about: 'The objects are in any namespace, or in none.',
  where: 'cluster',
  account: 'stowage-controller',
  rules: [
    {
      group: core,
      resource: 'persistentvolumeclaims',
      verbs: getListWatch,
      why: 'The controller creates a volume for each claim. It reads a claim that seems to be gone from the API server again before it deletes the volume.',
    },
    {
      group: core,
      resource: 'persistentvolumeclaims',
      verbs: ['patch'],
      why: 'If the node of a claim has no room or no agent, the controller removes the annotation `selected-node`, so that the scheduler chooses another node.',
    },
    {
      group: core,
      resource: 'persistentvolumeclaims/status',
      verbs: ['patch'],
      why: 'The controller writes the new capacity of an expanded volume, and the health of the volume, to the claim.',
    },
    {
      group: core,
      resource: 'persistentvolumes',
      verbs: [...getListWatch, 'create', 'patch', 'delete'],
      why: 'The controller creates a PersistentVolume for each volume, records its new size, and deletes it after the volume: first the finalizer, then the object.',
    },
    {
      group: storage,
      resource: 'storageclasses',
      verbs: [...listWatch, 'create', 'delete'],
      why: 'A claim names a class, and the class names the store. The controller creates the class of a store that asks for one, and deletes and recreates it when the store’s settings change.',
    },
    {
      group: stowage,
      resource: 'stores',
      verbs: listWatch,
      why: 'The administrator describes stores in these objects.',
    },
    {
      group: stowage,
      resource: 'stores/status',
      verbs: ['patch'],
      why: 'The controller reports whether a store can be reached, and how full it is.',
    },
    {
      group: core,
      resource: 'pods',
      verbs: ['get'],
      why: 'The controller reports an unhealthy volume on each pod that uses it, if it still is the same pod. It tells agents, which may not read pods, whether a pod on their node has its own user namespace. A leader checks whether the pods of earlier controllers have ended. A check of a store from the network of a pod needs the pod’s node and address.',
    },
    {
      group: core,
      resource: 'pods/eviction',
      verbs: ['create'],
      why: 'The controller evicts pods whose claim asks for it when only a new pod can see the remounted volume. Disruption budgets apply.',
    },
    {
      group: core,
      resource: 'nodes',
      verbs: getListWatch,
      why: 'The controller creates local volumes on nodes. When a node was deleted, which the controller verifies with a new request, it releases the node’s volumes.',
    },
    {
      group: storage,
      resource: 'csidrivers',
      names: drivers.map(({ name }) => name),
      verbs: ['get'],
      why: 'CSIStorageCapacity objects have the CSIDriver as their owner.',
    },
    {
      group: core,
      resource: 'namespaces',
      names: ['kube-system'],
      verbs: ['get'],
      why: 'Its uid tells this cluster from others that share a store.',
    },
    {
      group: 'events.k8s.io',
      resource: 'events',
      verbs: ['create', 'patch'],
      why: 'Events on claims and pods tell users what went wrong, and what to do.',
    },
    {
      group: 'authentication.k8s.io',
      resource: 'tokenreviews',
      verbs: ['create'],
      why: 'Each client of the controller sends a token. The API server says whose token it is, and on which node an agent runs.',
    },
    {
      group: 'authorization.k8s.io',
      resource: 'subjectaccessreviews',
      verbs: ['create'],
      why: 'The API server decides what a user may read.',
    },
  ],
};

const controllerAtHome: RbacRole = {
  name: 'stowage-controller',
  title: 'Controller, own namespace',
  about: '',
  where: ownNamespace,
  account: 'stowage-controller',
  rules: [
    {
      group: 'coordination.k8s.io',
      resource: 'leases',
      verbs: ['create'],
      why: 'One of several controllers leads. The first one creates the Lease for the election.',
    },
    {
      group: 'coordination.k8s.io',
      resource: 'leases',
      names: ['stowage-controller'],
      verbs: ['get', 'update'],
      why: 'The leader renews the Lease, and releases it when it ends. Controllers record on it their process marks, and which processes have ended.',
    },
    {
      group: core,
      resource: 'secrets',
      verbs: ['create'],
      when: 'certificateOwn',
      why: 'The first leader creates a Secret with the certificate of its TLS server. The controller creates and reads only the Secret in the next row.',
    },
    {
      group: core,
      resource: 'secrets',
      names: ['stowage-tls'],
      verbs: [...listWatch, 'update', 'delete'],
      when: 'certificateOwn',
      why: 'The leader keeps the certificate in this Secret, renews it before it expires, and replaces a Secret of another type.',
    },
    {
      group: core,
      resource: 'secrets',
      names: ['{{ .Values.tls.secretName }}'],
      verbs: listWatch,
      when: 'certificateGiven',
      why: 'The controller reads the certificate that the administrator provides.',
    },
    {
      group: core,
      resource: 'configmaps',
      verbs: ['create'],
      why: 'The leader publishes its certificate for agents, and records which machine each node is.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-ca'],
      verbs: [...listWatch, 'update'],
      why: 'The leader publishes its certificate here, without the key.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-nodes'],
      verbs: ['get', 'patch'],
      why: 'The leader records which machine each node is. When a node was deleted, it removes the use records of that machine from the stores.',
    },
    {
      group: discovery,
      resource: 'endpointslices',
      verbs: ['create'],
      why: 'The Service routes to the leader through this EndpointSlice.',
    },
    {
      group: discovery,
      resource: 'endpointslices',
      names: ['stowage-leader'],
      verbs: [...getListWatch, 'update', 'delete'],
      why: 'The leader writes its address here, and removes it when it stops leading.',
    },
    {
      group: core,
      resource: 'endpoints',
      verbs: ['create'],
      why: 'Users connect through the proxy of the API server, which reads Endpoints and not EndpointSlices.',
    },
    {
      group: core,
      resource: 'endpoints',
      names: ['stowage'],
      verbs: [...getListWatch, 'update', 'delete'],
      why: 'The leader writes the same address here, for that proxy.',
    },
    {
      group: storage,
      resource: 'csistoragecapacities',
      verbs: [...listWatch, 'create', 'patch', 'delete'],
      why: 'CSIStorageCapacity objects report the free space of each node, so that the scheduler places pods where there is room.',
    },
  ],
};

const agent: RbacRole = {
  name: 'stowage-agent',
  title: 'Agents',
  about: 'An attacker who takes over a node has these rights.',
  where: 'cluster',
  account: 'stowage-agent',
  rules: [
    {
      group: stowage,
      resource: 'stores',
      verbs: listWatch,
      why: 'An agent mounts the volumes of all stores, and creates the volumes of local stores on its node.',
    },
  ],
};

const agentAtHome: RbacRole = {
  name: 'stowage-agent',
  title: 'Agents, own namespace',
  about: '',
  where: ownNamespace,
  account: 'stowage-agent',
  rules: [
    {
      group: discovery,
      resource: 'endpointslices',
      names: ['stowage-leader'],
      verbs: listWatch,
      why: 'Agents read the address of the leader.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-ca'],
      verbs: listWatch,
      why: 'Agents read the certificate that identifies the leader.',
    },
  ],
};

export const roles: readonly RbacRole[] = [
  controller,
  controllerAtHome,
  agent,
  agentAtHome,
  viewer,
  adopter,
  readRules,
  everybody,
].filter(({ rules }) => rules.length > 0);
