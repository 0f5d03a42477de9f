import { execFileSync } from 'node:child_process';

/** Attaches the file to a loop device as another program would. Queries no other device. */
export const attachImage = (image: string): string =>
  execFileSync('losetup', ['--find', '--show', '--', image]).toString().trim();

/**
 * Like `mount -o loop`, which would query every loop device of the machine and hang if the file system of another test's device does not
 * answer. The device is detached at the unmount.
 */
export function mountImage(image: string, at: string, ...options: readonly string[]): void {
  const node = attachImage(image);
  try {
    execFileSync('mount', [...(options.length > 0 ? ['-o', options.join(',')] : []), '--', node, at]);
  } finally {
    // The mount keeps the device. Without a mount it is detached at once.
    execFileSync('losetup', ['--detach', node]);
  }
}
