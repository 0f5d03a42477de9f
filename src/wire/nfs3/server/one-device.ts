import { statfsSync, statSync } from 'node:fs';
import { statNewFile } from './stat-new-file.ts';

/** The file system type of overlayfs in statfs(2). */
const overlayfs = 0x794c7630;

/**
 * Files are identified by inode numbers, which are unique only within a device. An overlay over several file systems reports
 * other devices for its files than for its directories, so each file would look like a mount below the export and be left out.
 * Throws for such an overlay.
 */
export function requireOneDevice(directory: string): void {
  if (statfsSync(directory).type !== overlayfs) return;
  const stats = statNewFile(directory);
  // Undefined: no file can be created there at all.
  if (stats === undefined || stats.dev === statSync(directory, { bigint: true }).dev) return;
  throw new Error(
    `${directory} is on an overlay of several file systems, whose files cannot be told apart: export a directory of one file system, such as a volume or a disk of its own`,
  );
}
