import { statfsSync, statSync } from 'node:fs';
import { statNewFile } from './stat-new-file.ts';

/** statfs(2) */
const overlayfs = 0x794c7630;

/**
 * Files are known by their inode numbers, which mean nothing across devices. An overlay over several file systems shows its
 * files on other devices than its directories: each would look like something mounted below the export, and be left out. Throws.
 */
export function requireOneDevice(directory: string): void {
  if (statfsSync(directory).type !== overlayfs) return;
  const made = statNewFile(directory);
  // Undefined: nobody makes anything in it then.
  if (made === undefined || made.dev === statSync(directory, { bigint: true }).dev) return;
  throw new Error(
    `${directory} is on an overlay of several file systems, whose files cannot be told apart: export a directory of one file system, such as a volume or a disk of its own`,
  );
}
