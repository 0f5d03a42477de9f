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

/** A rule of Kubernetes: of the group `stowage.dev`, the resource, with its part behind a slash. */
export interface ResourceAccess {
  readonly resource: (typeof clusterResources)[number];
  readonly verb: 'get' | 'list' | 'watch' | 'create' | 'update' | 'patch' | 'delete';
}

/** A rule for a path, as for every program that is watched. */
export interface PathAccess {
  readonly path: '/metrics';
  readonly verb: 'get';
}

/** It makes no sense in a cluster, and what is done there. */
export interface Elsewhere {
  readonly instead: string;
}

export type Access = ResourceAccess | PathAccess;

/** What somebody must have to be let through: a role, or in a cluster a rule. Every route says both. */
export interface Right {
  readonly role: Role;
  readonly access: Access | Elsewhere;
}

/** What the rule is about, where it is about one thing: it can be given for that alone. */
export function subjectOf(params: unknown): string | undefined {
  const { store, volume, id } = (params ?? {}) as Readonly<Record<string, string | undefined>>;
  return store ?? volume ?? id;
}

/** `get volumes.stowage.dev` */
export const ruleText = (access: Access): string =>
  'path' in access ? `${access.verb} ${access.path}` : `${access.verb} ${qualified(access.resource)}`;

function qualified(resource: ResourceAccess['resource']): string {
  const [name = '', part] = resource.split('/');
  return `${name}.stowage.dev${part === undefined ? '' : `/${part}`}`;
}
