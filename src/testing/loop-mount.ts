import { execFileSync } from 'node:child_process';

/** A loop device with this file behind it, as another program would attach it. No other device is asked. */
export const attachImage = (image: string): string =>
  execFileSync('losetup', ['--find', '--show', '--', image]).toString().trim();

/**
 * As `mount -o loop`, which would ask every loop device of the machine about its file: while another test has one whose file system does not
 * answer, it would wait. Whoever unmounts it, the device goes too.
 */
export function mountImage(image: string, at: string, ...options: readonly string[]): void {
  const node = attachImage(image);
  try {
    execFileSync('mount', [...(options.length > 0 ? ['-o', options.join(',')] : []), '--', node, at]);
  } finally {
    // The mount keeps it; without one it is detached at once.
    execFileSync('losetup', ['--detach', node]);
  }
}
