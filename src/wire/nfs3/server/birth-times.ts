import { statNewFile } from './stat-new-file.ts';

/**
 * A handle names a file by its inode number and birth time. Without birth times the handle of a deleted file opens any file that gets
 * its number, also one in another volume, so callers could not be confined. Looks at a new file, since the root of a file system can lack
 * a birth time where files have one. Throws. Passes where the server can create no file there, as on a read-only file system.
 */
export function requireBirthTimes(directory: string): void {
  const made = statNewFile(directory);
  if (made === undefined || made.birthtimeNs !== 0n) return;
  throw new Error(
    `${directory} is on a file system without birth times, so the handle of a deleted file could open a file of another volume, and callers cannot be confined (--tls-confine): export a directory on ext4, XFS or Btrfs, or leave --tls-confine out`,
  );
}
