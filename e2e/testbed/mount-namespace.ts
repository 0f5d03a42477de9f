import { commandFailure, onPath } from './component.ts';

/**
 * Options for `unshare`. A new mount namespace is a copy of all mounts, including those of other tests. A slave
 * namespace follows their unmounts; a private one would keep their file systems, loop devices and images in use.
 */
export const slaveMounts: readonly string[] = ['--mount', '--propagation', 'slave'];

/**
 * A command prefix that runs a program as the same process in a new mount namespace, whose mounts propagate to its
 * slaves. These mounts are not visible outside, and end with the namespace. Undefined: this process may not create one.
 */
export function ownMounts(): readonly [string, ...string[]] | undefined {
  const unshare = process.platform === 'linux' && process.getuid?.() === 0 ? onPath('unshare') : undefined;
  if (unshare === undefined) return undefined;
  // First slave, then shared: if the machine's mounts are shared, shared alone would keep them in the same peer group.
  const words = [...slaveMounts, unshare, '--mount', '--propagation', 'shared'];
  return commandFailure(unshare, [...words, 'true']) === undefined ? [unshare, ...words] : undefined;
}
