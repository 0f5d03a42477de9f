import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import type { RbacRole, RbacRule } from '../../scripts/rbac-role.ts';
import { roles } from '../../scripts/rbac-rules.ts';
import { namespace } from './chart-fixture.ts';

/** One verb on one resource that an account of Stowage or a role of the chart has. */
export interface Right {
  readonly role: string;
  readonly where: 'cluster' | 'own';
  readonly resource: string;
  readonly verb: string;
  /** The names of the objects. Empty: all objects. */
  readonly names: string;
}

/** For display and comparison. */
export const titleOf = ({ resource, verb, names }: Omit<Right, 'role' | 'where'>): string =>
  [verb, resource, ...(names === '' ? [] : [names])].join(' ');

/** The rules of the chart with its default values. */
const usualRules = ({ rules }: RbacRole): readonly RbacRule[] =>
  rules.filter(({ when }) => when !== 'certificateGiven');

const rightsIn = (role: RbacRole): readonly Right[] =>
  usualRules(role).flatMap(({ resource, verbs, names = [] }) =>
    verbs.map((verb) => ({ role: role.name, where: role.where, resource, verb, names: names.join(',') })),
  );

export const rightsOf = (account: string): readonly Right[] =>
  roles.filter((role) => role.account === account).flatMap(rightsIn);

/** The rights of a role that no account of Stowage has. */
export const rightsOfRole = (name: string): readonly Right[] =>
  roles.filter((role) => role.name === name).flatMap(rightsIn);

/** The error of the API server for a missing right. */
export const refusalOf = ({ verb, resource }: Right): string => `cannot ${verb} resource \\"${resource}\\"`;

interface Rule {
  readonly resources: readonly string[];
  readonly resourceNames?: readonly string[];
  readonly verbs: readonly string[];
}
interface Role {
  readonly metadata: { readonly name: string };
  readonly rules: readonly Rule[];
}

const isGrantedBy = ({ resource, names }: Right, { resources, resourceNames = [] }: Rule): boolean =>
  resources.includes(resource) && resourceNames.join(',') === names;

/** Removes rights from a role. Disposing of the result restores the rights. */
export async function roleWithout(cluster: Cluster, rights: readonly Right[]): Promise<AsyncDisposable> {
  const before: Role[] = [];
  for (const [where, kind] of [
    ['cluster', ['clusterrole']],
    ['own', ['role', '--namespace', namespace]],
  ] as const) {
    const [first] = rights.filter((right) => right.where === where);
    if (first === undefined) continue;
    const role: Role = JSON.parse(await cluster.kubectl('get', ...kind, first.role, '--output=json'));
    const missing = rights.filter(
      (right) => right.where === where && !role.rules.some((rule) => isGrantedBy(right, rule)),
    );
    if (missing.length > 0) throw new Error(`the role lacks ${missing.map(titleOf).join(', ')}`);
    before.push(role);
    const rules = role.rules.flatMap((rule) => {
      const removedVerbs = new Set(
        rights.filter((right) => right.where === where && isGrantedBy(right, rule)).map(({ verb }) => verb),
      );
      const verbs = rule.verbs.filter((verb) => !removedVerbs.has(verb));
      return verbs.length === 0 ? [] : [{ ...rule, verbs }];
    });
    await cluster.apply({ ...role, rules });
  }
  return {
    [Symbol.asyncDispose]: async () => {
      for (const role of before) {
        const { metadata, ...rest } = role as Role & { readonly metadata: { readonly resourceVersion?: string } };
        const { resourceVersion: _, ...kept } = metadata;
        await cluster.apply({ ...rest, metadata: kept });
      }
    },
  };
}
