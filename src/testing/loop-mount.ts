import { execFileSync } from 'node:child_process';

/** Attaches the file to a loop device as another program would. Queries no other device. */
export const attachImage = (image: string): string =>
  execFileSync('losetup', ['--find', '--show', '--', image]).toString().trim();

/**
 * Like `mount -o loop`, but queries no other loop device. `mount -o loop` queries every one of the machine, and hangs
 * if the backing file of another test's device does not answer. The device is detached when the mount is removed.
 */
export function mountImage(image: string, at: string, ...options: readonly string[]): void {
  const node = attachImage(image);
  try {
    execFileSync('mount', [...(options.length > 0 ? ['-o', options.join(',')] : []), '--', node, at]);
  } finally {
    // The kernel detaches the device at the unmount, or at once if it is not mounted.
    execFileSync('losetup', ['--detach', node]);
  }
}
