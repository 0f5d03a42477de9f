import { statNewFile } from './stat-new-file.ts';

/**
 * A handle identifies a file by inode number and birth time. Without birth times, the handle of a deleted file would open any
 * file that reuses its inode number, also in another volume, so callers could not be confined. Checks a new file, since the root
 * of a file system can lack a birth time although its files have one. Throws if the file has no birth time. Passes if the server
 * cannot create a file there, as on a read-only file system.
 */
export function requireBirthTimes(directory: string): void {
  const stats = statNewFile(directory);
  if (stats === undefined || stats.birthtimeNs !== 0n) return;
  throw new Error(
    `${directory} is on a file system without birth times, so the handle of a deleted file could open a file of another volume, and callers cannot be confined (--tls-confine): export a directory on ext4, XFS or Btrfs, or leave --tls-confine out`,
  );
}
