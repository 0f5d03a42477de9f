import { closeSync, constants, fstatSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { cachedIdentity, type FileIdentity, openCached, readCached } from '#base/linux/page-cache-io.ts';
import type { Files } from '../file-store/files.ts';
import { fileInfoOf, localFiles } from './files.ts';

/** statfs(2) types of file systems that answer from memory for cached files, without asking a server or a program. */
const [ext4, xfs, btrfs, f2fs, tmpfs] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
const cachingFileSystems: ReadonlySet<number> = new Set([ext4, xfs, btrfs, f2fs, tmpfs]);

/** O_PATH of open(2). The value is the same on every architecture that Node runs on. */
const O_PATH = 0o10000000;
const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY } = constants;
/** Records have a few hundred bytes. Longer files are read through the thread pool. */
const maxCachedBytes = 4_096;

/**
 * Files of a store on a disk of this machine. Reads what is in the page cache synchronously, which cannot block on a disk: each call on the
 * thread pool wakes two threads, and a mount makes half a dozen calls.
 */
export async function filesIn(root: string): Promise<Files> {
  return (await answersFromCache(root)) ? cachedFiles(root) : localFiles;
}

/** Whether cached files of this file system can be read synchronously. */
export const answersFromCache = async (root: string): Promise<boolean> =>
  cachingFileSystems.has((await statfs(root)).type);

/** Identity of the folder at that path, if the kernel has it cached. Undefined: not cached. */
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
  const buffer = Buffer.alloc(maxCachedBytes);

  function withCachedFile<T>(path: string, flags: number, work: (fd: number) => T | undefined): T | undefined {
    if (!path.startsWith(`${root}/`)) return undefined;
    // Open the root each time: another disk may be mounted there by now.
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
      withCachedFile(path, O_PATH | O_NOFOLLOW, (fd) => fileInfoOf(fstatSync(fd))) ?? (await localFiles.lstat(path)),
    read: async (path, limit) => {
      const found = withCachedFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, (fd) => {
        const stats = fstatSync(fd);
        if (!stats.isFile() || stats.size > Math.min(limit, buffer.length)) return undefined;
        // Only a part of the file may be cached.
        return readCached(fd, buffer) === stats.size ? Buffer.from(buffer.subarray(0, stats.size)) : undefined;
      });
      return found ?? (await localFiles.read(path, limit));
    },
  };
}
