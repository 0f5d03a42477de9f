import type { Dirent, Stats } from 'node:fs';
import { constants } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, readdir, rename, rm, rmdir, unlink } from 'node:fs/promises';
import { isErrno } from '#base/errno.ts';
import { writeAll } from '#base/write-all.ts';
import { type FileInfo, type Files, type FileType, UnsuitableFile } from '../file-store/files.ts';
import { scanTree } from './scan.ts';
import { emptyFolder } from './tree.ts';

/** The file system of this machine. */
export const localFiles: Files = {
  lstat: async (path) => {
    const found = await lstatIfThere(path);
    return found && fileInfoOf(found);
  },
  names: (folder) => readdir(folder),
  list: async (folder) =>
    (await readdir(folder, { withFileTypes: true })).map((entry) => ({ name: entry.name, type: typeOf(entry) })),
  read: readBounded,
  writeNew,
  writeNewUnless: async (beside, path, text) => {
    if ((await lstatIfThere(beside)) !== undefined) return 'exists';
    try {
      await writeNew(path, text);
      return 'written';
    } catch (cause) {
      if (isErrno(cause, 'EEXIST')) return 'exists';
      throw cause;
    }
  },
  newFolder: async (path, mode) => {
    await mkdir(path, { mode });
  },
  makeFolder: async (path, mode = 0o700) => {
    await mkdir(path, { mode, recursive: true });
  },
  rename: renameIfThere,
  unlink: unlinkIfThere,
  rmdir: (path) => rmdir(path),
  removeAll: (path) => rm(path, { recursive: true, force: true }),
  emptyFolder,
  scan: (top, signal) => scanTree(top, signal),
  sync: syncFolder,
};

const typeOf = (entry: Dirent | Stats): FileType =>
  entry.isDirectory() ? 'directory' : entry.isFile() ? 'file' : entry.isSymbolicLink() ? 'link' : 'other';

export const fileInfoOf = (stats: Stats): FileInfo => ({
  type: typeOf(stats),
  createdAt: stats.birthtimeMs,
  changedAt: stats.ctimeMs,
});

/** Undefined: absent. Never follows a symbolic link. */
export async function lstatIfThere(path: string): Promise<Stats | undefined> {
  try {
    return await lstat(path);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw cause;
  }
}

/** False: absent. */
export async function unlinkIfThere(path: string): Promise<boolean> {
  return falseIfAbsent(unlink(path));
}

/** False: `from` does not exist. */
export async function renameIfThere(from: string, to: string): Promise<boolean> {
  return falseIfAbsent(rename(from, to));
}

async function falseIfAbsent(work: Promise<void>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return false;
    throw cause;
  }
}

/**
 * O_NOFOLLOW: a planted link must not make us read another file. O_NONBLOCK: open(2) of a planted FIFO must not wait for a writer.
 */
export async function readBounded(path: string, limit: number): Promise<Buffer> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const opened = await file.stat();
    if (opened.isDirectory()) throw new UnsuitableFile('it is a directory');
    if (!opened.isFile()) throw new UnsuitableFile('it is not a plain file');
    return await readToEnd(file, opened.size, limit);
  } finally {
    await file.close();
  }
}

/** `size`: the expected size of the file. */
export async function readToEnd(file: Pick<FileHandle, 'read'>, size: number, limit: number): Promise<Buffer> {
  // Most files are small, so start with a small buffer; if it fills up, the file may be larger.
  let buffer = Buffer.allocUnsafe(Math.min(limit + 1, 4096));
  let length = 0;
  for (;;) {
    const { bytesRead } = await file.read(buffer, length, buffer.length - length, null);
    length += bytesRead;
    if (length < buffer.length) {
      // Network and FUSE file systems may return short reads. Read on: a record that looks cut off could get removed.
      if (bytesRead === 0 || length >= size) return buffer.subarray(0, length);
      continue;
    }
    if (length > limit) throw new UnsuitableFile(`it is larger than ${limit} bytes`);
    buffer = Buffer.concat([buffer, Buffer.allocUnsafe(limit + 1 - length)]);
  }
}

/** Syncs the content; the file's existence is durable after the next sync of the directory. O_EXCL never follows a link. */
export async function writeNew(path: string, text: string): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  try {
    await writeAll(file, text);
    await file.datasync();
  } catch (cause) {
    await unlinkIfThere(path).catch(() => false);
    throw cause;
  } finally {
    await file.close();
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
