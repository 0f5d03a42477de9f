import { type ContainerReference, pluginNames } from './containers.ts';
import type { NodeName, User } from './model.ts';

/**
 * The users of a volume on this node: the users of its mounts, and the containers that reference it. An engine's mount is for these
 * containers, so the engine itself is listed only if no container is known.
 */
export function usersOnRecord(
  mounted: readonly { readonly user: User }[],
  references: readonly Pick<ContainerReference, 'name'>[],
  node: NodeName,
): readonly User[] {
  const users = mounted.map(({ user }) => user);
  const named = references.map(({ name }): User => ({ kind: 'container', name, node }));
  return named.length === 0 ? users : [...users.filter((user) => !isEngine(user)), ...named];
}

/** True for a container engine itself, which stands for an unknown container. */
export const isEngine = ({ kind, name }: Pick<User, 'kind' | 'name'>): boolean =>
  kind === 'container' && pluginNames.some((plugin) => plugin === name);
