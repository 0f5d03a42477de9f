// The roles for users who read, and for users who change something.
import { core, getListWatch, ownNamespace, type RbacRole, stowage } from './rbac-role.ts';

export const viewer: RbacRole = {
  name: 'stowage-viewer',
  title: 'Viewer',
  about:
    'The account by which `kubectl stowage` looks. The controller asks the API server for these rights; no object of these kinds but stores is in Kubernetes.',
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
      why: 'To show volumes, on stores that are shared and on those of the nodes.',
    },
    {
      group: stowage,
      resource: 'mounts',
      verbs: ['list'],
      why: 'To show what is mounted on which node, and for whom.',
    },
    {
      group: stowage,
      resource: 'clients',
      verbs: ['list'],
      why: 'To show what serves the mounts, and how it is.',
    },
    {
      group: stowage,
      resource: 'status',
      verbs: ['get'],
      why: 'To show what runs in the cluster, and which nodes have no agent that is connected.',
    },
    {
      group: stowage,
      resource: 'doctor',
      verbs: ['get'],
      why: 'To show what each node offers, and what it lacks.',
    },
    {
      group: stowage,
      resource: 'operations',
      verbs: ['get', 'list'],
      why: 'To show what is being done, and what became of it.',
    },
    {
      group: stowage,
      resource: 'trash',
      verbs: ['list'],
      why: 'To show which deleted volumes can still be had back.',
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
    'The account by which `kubectl stowage store adopt` and `take-over` make directories volumes. Only administrators of the cluster may ask for its token. It may change nothing in Kubernetes: what `take-over` changes there, it changes with the rights of the user who runs it.',
  where: 'cluster',
  account: 'stowage-adopter',
  rules: [
    {
      group: stowage,
      resource: 'stores/adopt',
      verbs: ['create'],
      why: 'Directories that are there become volumes where they are.',
    },
    {
      group: stowage,
      resource: 'volumes',
      verbs: ['list'],
      why: 'Which of them are volumes already.',
    },
    {
      group: stowage,
      resource: 'stores',
      verbs: ['get'],
      why: 'Only users with this right may see where stores are, so only they see why a directory cannot be adopted.',
    },
    {
      group: stowage,
      resource: 'operations',
      verbs: ['get', 'update'],
      why: 'On a terminal it is shown how far that is, and Ctrl-C ends it.',
    },
  ],
};

export const readRules: RbacRole = {
  name: 'stowage-viewers',
  title: 'Who may look',
  about: 'Nobody has it but those in the value `viewers`, and administrators of the cluster, who may everything.',
  where: ownNamespace,
  value: 'viewers',
  rules: [
    {
      group: core,
      resource: 'serviceaccounts/token',
      names: ['stowage-viewer'],
      verbs: ['create'],
      why: '`kubectl stowage` asks for a token of the viewer, which is good for minutes.',
    },
    {
      group: core,
      resource: 'services/proxy',
      names: ['https:stowage:443'],
      verbs: ['get'],
      why: 'It reaches the controller through the API server, without a way into the cluster’s network.',
    },
  ],
};

export const everybody: RbacRole = {
  name: 'stowage-stores-view',
  title: 'Everyone who may view',
  about: 'It is added to the usual roles `view`, `edit` and `admin` of Kubernetes.',
  where: 'cluster',
  extraLabels: { 'rbac.authorization.k8s.io/aggregate-to-view': 'true' },
  rules: [
    {
      group: stowage,
      resource: 'stores',
      verbs: getListWatch,
      why: '`kubectl get stores` shows which stores there are, and why one cannot be used.',
    },
  ],
};
