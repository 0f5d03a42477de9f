import { closeSync, constants, fstatSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { cachedIdentity, type FileIdentity, openCached, readCached } from '#base/linux/page-cache-io.ts';
import type { Files } from '../file-store/files.ts';
import { fileInfoOf, localFiles } from './files.ts';

/** Of file systems that keep in memory what they know of an open file, and ask neither a server nor a program for it. */
const [ext4, xfs, btrfs, f2fs, tmpfs] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
const cachingFileSystems: ReadonlySet<number> = new Set([ext4, xfs, btrfs, f2fs, tmpfs]);

/** open(2): only the place. The same number on every processor that Node runs on. */
const O_PATH = 0o10000000;
const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY } = constants;
/** Records have a few hundred bytes; what is longer is read in the usual way. */
const maxCachedBytes = 4_096;

/**
 * The same files, where those of a store are on a disk of this machine. What the kernel has of them in memory is read in line,
 * which no disk can keep from ending: each call that is made on a thread wakes two, and a mount makes half a dozen.
 */
export async function filesIn(root: string): Promise<Files> {
  return (await answersFromCache(root)) ? cachedFiles(root) : localFiles;
}

/** Whether what the kernel has in memory of it can be had in line. */
export const answersFromCache = async (root: string): Promise<boolean> =>
  cachingFileSystems.has((await statfs(root)).type);

/** What the kernel finds at that path now, if it knows it. Undefined: it would have to look. */
export function folderInCache(path: string): FileIdentity | undefined {
  const fd = openCached(path, O_PATH | O_DIRECTORY);
  if (fd === undefined) return undefined;
  try {
    return cachedIdentity(fd);
  } finally {
    closeSync(fd);
  }
}

function cachedFiles(root: string): Files {
  const into = Buffer.alloc(maxCachedBytes);

  function opened<T>(path: string, flags: number, work: (fd: number) => T | undefined): T | undefined {
    if (!path.startsWith(`${root}/`)) return undefined;
    // Found anew each time: another disk may be mounted there by now.
    const top = openCached(root, O_PATH | O_DIRECTORY);
    if (top === undefined) return undefined;
    try {
      const fd = openCached(path.slice(root.length + 1), flags, top);
      if (fd === undefined) return undefined;
      try {
        return work(fd);
      } finally {
        closeSync(fd);
      }
    } finally {
      closeSync(top);
    }
  }

  return {
    ...localFiles,
    lstat: async (path) =>
      opened(path, O_PATH | O_NOFOLLOW, (fd) => fileInfoOf(fstatSync(fd))) ?? (await localFiles.lstat(path)),
    read: async (path, limit) => {
      const found = opened(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, (fd) => {
        const stats = fstatSync(fd);
        if (!stats.isFile() || stats.size > Math.min(limit, into.length)) return undefined;
        // A part of it may be in memory, and the rest not.
        return readCached(fd, into) === stats.size ? Buffer.from(into.subarray(0, stats.size)) : undefined;
      });
      return found ?? (await localFiles.read(path, limit));
    },
  };
}
