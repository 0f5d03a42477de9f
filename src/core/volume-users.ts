import { pluginNames, type Reference } from './containers.ts';
import type { NodeName, User } from './model.ts';

/**
 * Who uses a volume on this node: whom it is mounted for, and the containers that name it. What an engine has mounted is for
 * those; only where none of them is known does the engine itself stand for them.
 */
export function usersOnRecord(
  mounted: readonly { readonly user: User }[],
  references: readonly Pick<Reference, 'name'>[],
  node: NodeName,
): readonly User[] {
  const users = mounted.map(({ user }) => user);
  const named = references.map(({ name }): User => ({ kind: 'container', name, node }));
  return named.length === 0 ? users : [...users.filter((user) => !isEngine(user)), ...named];
}

/** What an engine asked for, and nobody knows for which container. */
export const isEngine = ({ kind, name }: Pick<User, 'kind' | 'name'>): boolean =>
  kind === 'container' && pluginNames.some((plugin) => plugin === name);
