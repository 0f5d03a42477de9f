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
      why: 'A claim says how large its volume is after it has grown, and whether that is ill.',
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
      why: 'Claims name a class, and that the store. Stores that ask for a class have one, made anew when its store says something else.',
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
      why: 'Whoever uses a volume that is ill is told so on the pod, if that still is the same one. Agents, which may read no pods, are told whether one on their node has users of its own. A leader looks whether the pods of controllers before it have ended. A check of a store from the network of a pod needs the pod’s node and address.',
    },
    {
      group: core,
      resource: 'pods/eviction',
      verbs: ['create'],
      why: 'Pods whose claim asks for it are evicted when only a new pod sees the mount that was made anew. Disruption budgets hold.',
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
      why: 'Whoever comes to the door shows a token, and the API server says whose it is, and of an agent on which node it runs.',
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
      why: 'The certificate is kept there, is made anew in time, and takes the place of one of another type.',
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
      why: 'The service leads to whoever leads.',
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
      why: 'The proxy of the API server, by which users come, goes by Endpoints and not by EndpointSlices.',
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
  about: 'Whoever takes over a node has as much.',
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
