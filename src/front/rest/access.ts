import type { PodName } from '#core/check-places.ts';
import type { Role } from '#core/model.ts';

export const clusterResources = [
  'clients',
  'doctor',
  'events',
  'mounts',
  'operations',
  'status',
  'stores',
  'stores/adopt',
  'stores/check',
  'trash',
  'volumes',
  'volumes/uses',
] as const;

/** A Kubernetes RBAC rule for a resource, or `resource/subresource`, of the API group `stowage.dev`. */
export interface ResourceAccess {
  readonly resource: (typeof clusterResources)[number];
  readonly verb: 'get' | 'list' | 'watch' | 'create' | 'update' | 'patch' | 'delete';
}

/** A Kubernetes RBAC rule for a non-resource URL. */
export interface PathAccess {
  readonly path: '/metrics';
  readonly verb: 'get';
}

/** The Kubernetes RBAC rule for reading one pod. */
export interface PodAccess {
  readonly pod: PodName;
  readonly verb: 'get';
}

/** The route is not available in a cluster. */
export interface NotInCluster {
  /** What to do there instead. */
  readonly instead: string;
}

export type Access = ResourceAccess | PathAccess | PodAccess;

/**
 * Which tokens are accepted. `server`: only tokens that are not limited to stores. `store`: tokens for the store that the request is about.
 * `visible`: every token; the answer leaves out other stores.
 */
export type TokenScope = 'server' | 'store' | 'visible';

/** The most that a request can do. `acts on the machine`: with the rights of the user that runs Stowage, usually root. */
export type Effect = 'reads' | 'changes volumes' | 'destroys data' | 'changes the server' | 'acts on the machine';

/** What a caller needs: a token with this role and scope, or in a cluster an RBAC rule. Every route declares all of them. */
export interface Right {
  readonly role: Role;
  readonly scope: TokenScope;
  readonly effect: Effect;
  readonly access: Access | NotInCluster;
}

/** For the paths outside the route table. Prometheus reads `/metrics`. */
export const metricsRight: Right = {
  role: 'viewer',
  scope: 'visible',
  effect: 'reads',
  access: { path: '/metrics', verb: 'get' },
};
export const eventsRight: Right = {
  role: 'viewer',
  scope: 'visible',
  effect: 'reads',
  access: { resource: 'events', verb: 'watch' },
};

/** To read the pod from whose network a store is checked. */
export const podRight = (pod: PodName): Right => ({
  role: 'admin',
  scope: 'server',
  effect: 'reads',
  access: { pod, verb: 'get' },
});

/** The object of the request, for rules that name single resources (`resourceNames`). */
export function subjectOf(params: unknown): string | undefined {
  const { store, volume, id } = (params ?? {}) as Readonly<Record<string, string | undefined>>;
  return store ?? volume ?? id;
}

/** `get volumes.stowage.dev` */
export function ruleText(access: Access): string {
  if ('pod' in access) return `${access.verb} pods`;
  return `${access.verb} ${'path' in access ? access.path : qualifiedResource(access.resource)}`;
}

function qualifiedResource(resource: ResourceAccess['resource']): string {
  const [name = '', part] = resource.split('/');
  return `${name}.stowage.dev${part === undefined ? '' : `/${part}`}`;
}
