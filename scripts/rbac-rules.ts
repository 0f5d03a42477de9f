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
  about: 'What is asked for is anywhere in the cluster.',
  where: 'cluster',
  account: 'stowage-controller',
  rules: [
    {
      group: core,
      resource: 'persistentvolumeclaims',
      verbs: getListWatch,
      why: 'Claims are what volumes are made for. One that seems to be gone is asked for again before its volume is taken away.',
    },
    {
      group: core,
      resource: 'persistentvolumeclaims',
      verbs: ['patch'],
      why: 'A claim whose node has no room or no agent gets another: the annotation by which the scheduler chose is taken back.',
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
      why: 'A PersistentVolume is written for each volume that was made, says its new size, and is taken away with its volume: first the finalizer, then the object.',
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
      why: 'Stores are what the administrator says.',
    },
    {
      group: stowage,
      resource: 'stores/status',
      verbs: ['patch'],
      why: 'They say whether they can be reached, and how full they are.',
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
      why: 'Volumes are made on nodes, and a node that is gone for good, which is asked for again, no longer holds any.',
    },
    {
      group: storage,
      resource: 'csidrivers',
      names: drivers.map(({ name }) => name),
      verbs: ['get'],
      why: 'What is said of the room on nodes goes with the driver.',
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
      why: 'Users read on their claims and pods what went wrong, and what to do.',
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
      why: 'The API server says what a user may look at.',
    },
  ],
};

const controllerAtHome: RbacRole = {
  name: 'stowage-controller',
  title: 'Controller, at home',
  about: '',
  where: ownNamespace,
  account: 'stowage-controller',
  rules: [
    {
      group: 'coordination.k8s.io',
      resource: 'leases',
      verbs: ['create'],
      why: 'Of several controllers one leads, by a Lease, which the first one makes.',
    },
    {
      group: 'coordination.k8s.io',
      resource: 'leases',
      names: ['stowage-controller'],
      verbs: ['get', 'update'],
      why: 'The leader renews it, and gives it back at its end. Controllers record on it which process they are, and which ones are dead.',
    },
    {
      group: core,
      resource: 'secrets',
      verbs: ['create'],
      when: 'certificateOwn',
      why: 'The first leader makes a certificate for the door. It makes and reads no other Secret than the following one.',
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
      why: 'The certificate that somebody else keeps is read.',
    },
    {
      group: core,
      resource: 'configmaps',
      verbs: ['create'],
      why: 'Agents have to know the certificate; and which machine each node is, is written down.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-ca'],
      verbs: [...listWatch, 'update'],
      why: 'It is published there, without its key.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-nodes'],
      verbs: ['get', 'patch'],
      why: 'Which machine each node is: when a node is gone for good, what that machine said on stores is taken back.',
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
      why: 'Its address is there, for as long as it leads.',
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
      why: 'The same address once more, for that proxy.',
    },
    {
      group: storage,
      resource: 'csistoragecapacities',
      verbs: [...listWatch, 'create', 'patch', 'delete'],
      why: 'They say how much room there is on which node, so that pods are scheduled to where it is.',
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
      why: 'An agent mounts volumes of the stores that there are, and makes those of the local ones on its node.',
    },
  ],
};

const agentAtHome: RbacRole = {
  name: 'stowage-agent',
  title: 'Agents, at home',
  about: '',
  where: ownNamespace,
  account: 'stowage-agent',
  rules: [
    {
      group: discovery,
      resource: 'endpointslices',
      names: ['stowage-leader'],
      verbs: listWatch,
      why: 'The address of the controller that leads.',
    },
    {
      group: core,
      resource: 'configmaps',
      names: ['stowage-ca'],
      verbs: listWatch,
      why: 'The certificate by which it is known.',
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
