// The roles of users who read, and of users who change something.
import { core, getListWatch, ownNamespace, type RbacRole, stowage } from './rbac-role.ts';

export const viewer: RbacRole = {
  name: 'stowage-viewer',
  title: 'Viewer',
  about:
    '`kubectl stowage` reads with a token of this account. The controller checks these rights with the API server. Of these resources, only stores are objects in Kubernetes.',
  where: 'cluster',
  account: 'stowage-viewer',
  rules: [
    {
      group: stowage,
      resource: 'stores',
      verbs: ['get', 'list'],
      why: 'To show stores and how full they are.',
    },
    {
      group: stowage,
      resource: 'volumes',
      verbs: ['get', 'list'],
      why: 'To show the volumes of shared stores and of node-local stores.',
    },
    {
      group: stowage,
      resource: 'mounts',
      verbs: ['list'],
      why: 'To show the mounts of each node, and their users.',
    },
    {
      group: stowage,
      resource: 'clients',
      verbs: ['list'],
      why: 'To show the processes that serve the mounts, and their state.',
    },
    {
      group: stowage,
      resource: 'status',
      verbs: ['get'],
      why: 'To show which parts run in the cluster, and which nodes have no connected agent.',
    },
    {
      group: stowage,
      resource: 'doctor',
      verbs: ['get'],
      why: 'To show what each node supports, and what it lacks.',
    },
    {
      group: stowage,
      resource: 'operations',
      verbs: ['get', 'list'],
      why: 'To show running operations, and the results of earlier ones.',
    },
    {
      group: stowage,
      resource: 'trash',
      verbs: ['list'],
      why: 'To show which deleted volumes can still be restored.',
    },
    {
      group: stowage,
      resource: 'events',
      verbs: ['watch'],
      why: 'To show changes as they happen.',
    },
  ],
};

export const adopter: RbacRole = {
  name: 'stowage-adopter',
  title: 'Adopter',
  about:
    '`kubectl stowage store adopt` and `take-over` turn directories into volumes with a token of this account. Only administrators of the cluster may request the token. The account may change nothing in Kubernetes: `take-over` changes objects there with the rights of the user who runs it.',
  where: 'cluster',
  account: 'stowage-adopter',
  rules: [
    {
      group: stowage,
      resource: 'stores/adopt',
      verbs: ['create'],
      why: 'To turn existing directories into volumes in place.',
    },
    {
      group: stowage,
      resource: 'volumes',
      verbs: ['list'],
      why: 'To see which directories already are volumes.',
    },
    {
      group: stowage,
      resource: 'stores',
      verbs: ['get'],
      why: 'Only users with this right may see the locations of stores, so only they see why a directory cannot be adopted.',
    },
    {
      group: stowage,
      resource: 'operations',
      verbs: ['get', 'update'],
      why: 'To show the progress on a terminal, and to cancel with Ctrl-C.',
    },
  ],
};

export const readRules: RbacRole = {
  name: 'stowage-viewers',
  title: 'Users who may read',
  about:
    'Only the subjects in the value `viewers` have this role. Administrators of the cluster may do everything anyway.',
  where: ownNamespace,
  value: 'viewers',
  rules: [
    {
      group: core,
      resource: 'serviceaccounts/token',
      names: ['stowage-viewer'],
      verbs: ['create'],
      why: '`kubectl stowage` requests a token of the viewer, which is valid for some minutes.',
    },
    {
      group: core,
      resource: 'services/proxy',
      names: ['https:stowage:443'],
      verbs: ['get'],
      why: '`kubectl stowage` reaches the controller through the API server, without access to the cluster’s network.',
    },
  ],
};

export const everybody: RbacRole = {
  name: 'stowage-stores-view',
  title: 'Users with the role view',
  about: 'Kubernetes aggregates this role into its roles `view`, `edit` and `admin`.',
  where: 'cluster',
  extraLabels: { 'rbac.authorization.k8s.io/aggregate-to-view': 'true' },
  rules: [
    {
      group: stowage,
      resource: 'stores',
      verbs: getListWatch,
      why: '`kubectl get stores` lists the stores, and shows why one cannot be used.',
    },
  ],
};
