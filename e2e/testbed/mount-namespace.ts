import { commandFailure, onPath } from './component.ts';

/**
 * For `unshare`: a mount namespace begins with a copy of every mount that there is, also of other tests. Being a slave,
 * it lets go of them when they are unmounted; otherwise it would keep their file systems, loop devices and images in use.
 */
export const slaveMounts: readonly string[] = ['--mount', '--propagation', 'slave'];

/**
 * The words to put before a program so that it runs, under the same process id, with mounts of its own that slaves of it
 * follow. What it mounts is not seen outside, and ends with it. Undefined where that is not to be had.
 */
export function ownMounts(): readonly [string, ...string[]] | undefined {
  const unshare = process.platform === 'linux' && process.getuid?.() === 0 ? onPath('unshare') : undefined;
  if (unshare === undefined) return undefined;
  // Slave first, shared then: on a machine whose mounts are shared, shared alone would still be one with it.
  const words = [...slaveMounts, unshare, '--mount', '--propagation', 'shared'];
  return commandFailure(unshare, [...words, 'true']) === undefined ? [unshare, ...words] : undefined;
}
