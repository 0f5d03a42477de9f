import { closeSync, fstatSync, openSync, statfsSync, statSync, unlinkSync } from 'node:fs';

/** statfs(2) */
const overlayfs = 0x794c7630;

/**
 * Files are known by their inode numbers, which mean nothing across devices. An overlay over several file systems shows its
 * files on other devices than its directories: each would look like something mounted below the export, and be left out. Throws.
 */
export function requireOneDevice(directory: string): void {
  if (statfsSync(directory).type !== overlayfs) return;
  const file = `${directory}/.stowage-probe-${process.pid}`;
  let fd: number;
  try {
    fd = openSync(file, 'wx', 0o600);
  } catch {
    // Nobody makes anything in it then.
    return;
  }
  try {
    unlinkSync(file);
    if (fstatSync(fd).dev === statSync(directory).dev) return;
  } finally {
    closeSync(fd);
  }
  throw new Error(
    `${directory} is on an overlay of several file systems, whose files cannot be told apart: export a directory of one file system, such as a volume or a disk of its own`,
  );
}
