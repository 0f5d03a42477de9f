import { eachBounded } from '#base/each-bounded.ts';
import { isErrno } from '#base/errno.ts';
import {
  type Attributes,
  type FileHandle,
  fileType,
  isNfsError,
  listDirectory,
  type NfsClient,
  readFully,
  removeTree,
  type SetAttributes,
} from '#wire/nfs3/index.ts';
import { type Entry, type Files, type FileType, UnsuitableFile } from '../file-store/files.ts';
import { emptyFolder, scanTree } from './empty-and-scan.ts';
import type { Folders } from './folders.ts';
import { isProcessMarkTime, isSameMark } from './lock-marks.ts';
import { asSystemError } from './system-error.ts';
import { toMs, writeDurably } from './write-durably.ts';

/** The file system of a store on an NFS server, with the calls that only this store needs. */
export interface NfsFiles extends Files {
  attributes(path: string): Promise<Attributes | undefined>;
  /** Creates an empty file exclusively. Its mark (see lock-marks.ts) identifies this process until something is written. */
  create(path: string): Promise<void>;
  /** Empties the file and sets our mark, unless it has changed since `seen`. */
  resetMark(path: string, seen: Attributes): Promise<boolean>;
  /** Makes a hard link to `from`, exclusively (`EEXIST`). */
  link(from: string, to: string): Promise<void>;
  mkdir(path: string, set: SetAttributes): Promise<void>;
  /** Sets the folder's mtime to the server's time, and returns it in ms. Needs no free space. */
  touch(folder: string): Promise<number>;
  /** The folder's NFS file handle. */
  handle(path: string): Promise<FileHandle>;
  /** Creates or overwrites the file, durably. Returns the server's time in ms. */
  write(path: string, text: string): Promise<number>;
  /** Overwrites in place a plain file of at most `limit` bytes, and pads the text with blanks. False: there is no such file. */
  overwrite(path: string, text: string, limit: number): Promise<boolean>;
}

export interface NfsFilesParts {
  readonly nfs: NfsClient;
  readonly folders: Folders;
  readonly deadlineMs: number;
  /** A new mtime for each created file, so that a resent call recognizes its own file. */
  nextMark(): { readonly seconds: number; readonly nanoseconds: number };
}

interface FoundFile {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

/** Limits listings that are kept in memory, in case a server's listing never ends. */
const maxListedEntries = 500_000;
/** Retries if other hosts replace a record between LOOKUP and READ. */
const maxReadAttempts = 8;

const types = new Map<number, FileType>([
  [fileType.regular, 'file'],
  [fileType.directory, 'directory'],
  [fileType.link, 'link'],
]);
const typeOf = ({ type }: Attributes): FileType => types.get(type) ?? 'other';

/** Skips names that are not UTF-8. */
async function namesOf(pages: ReturnType<typeof listDirectory>): Promise<readonly string[]> {
  const names: string[] = [];
  for await (const page of pages) for (const { name, bytes } of page) if (bytes === undefined) names.push(name);
  return names;
}

/** Access to one directory of a server. Each call has its own deadline. */
export function createNfsFiles({ nfs, folders, deadlineMs, nextMark }: NfsFilesParts): NfsFiles {
  const limits = { deadlineMs };
  const listing = { ...limits, maxEntries: maxListedEntries };
  const { inParent } = folders;

  const find = (path: string): Promise<FoundFile | undefined> =>
    inParent(path, async (folder, name) => {
      try {
        const { handle, attributes } = await nfs.lookup(folder, name, limits);
        return { handle, attributes: attributes ?? (await nfs.getattr(handle, limits)) };
      } catch (cause) {
        if (isNfsError(cause, 'NOENT')) return undefined;
        throw cause;
      }
    });

  async function readFound(path: string, limit: number): Promise<Buffer> {
    const found = await find(path);
    if (found === undefined) throw Object.assign(new Error(`${path} does not exist`), { code: 'ENOENT' });
    const { handle, attributes } = found;
    refuseUnsuitable(attributes, limit);
    const buffer = Buffer.alloc(attributes.size);
    return buffer.subarray(0, await readFully(nfs, handle, 0, buffer, limits));
  }

  const createFile = (path: string): Promise<FileHandle> =>
    inParent(path, async (folder, name) => {
      const createOptions = { mode: 'guarded', set: { mode: 0o600, mtime: nextMark() } } as const;
      return (await nfs.create(folder, name, createOptions, limits)).handle;
    });

  /** Removes the new file if writing to it fails. */
  async function writeOrRemove(path: string, handle: FileHandle, text: string): Promise<void> {
    if (text === '') return;
    try {
      const changedAt = await writeDurably(nfs, { path, handle }, text, limits);
      // Some servers do not update mtime on a write. A file with content must not keep a mark.
      if (changedAt > 0 && isProcessMarkTime({ mtime: changedAt / 1000 })) await touch(nfs, handle, limits);
    } catch (cause) {
      if (isErrno(cause, 'ENOSPC', 'EDQUOT', 'EFBIG', 'EIO')) await unlink(path).catch(() => false);
      throw cause;
    }
  }

  const mkdir: NfsFiles['mkdir'] = async (path, set) => {
    await inParent(path, (folder, name) => nfs.mkdir(folder, name, set, limits));
  };

  const unlink = (path: string): Promise<boolean> =>
    inParent(path, async (folder, name) => {
      try {
        await nfs.remove(folder, name, limits);
        return true;
      } catch (cause) {
        if (isNfsError(cause, 'NOENT')) return false;
        throw cause;
      }
    });

  const attributesOf = async (path: string): Promise<Attributes | undefined> =>
    (await undefinedIfFolderAbsent(find(path)))?.attributes;

  const lstat: Files['lstat'] = async (path) => {
    const found = await attributesOf(path);
    if (found === undefined) return undefined;
    // NFS version 3 has no birth time.
    return {
      type: typeOf(found),
      createdAt: toMs(found.mtime, found.mtimeNs),
      changedAt: toMs(found.ctime, found.ctimeNs),
    };
  };

  return {
    lstat,
    attributes: attributesOf,
    mkdir,
    unlink,
    create: async (path) => {
      await createFile(path);
    },
    resetMark: async (path, { fileId, ctime, ctimeNs }) => {
      const found = await find(path);
      if (found?.attributes.fileId !== fileId) return false;
      const ifChangedAt = { seconds: ctime, nanoseconds: ctimeNs };
      try {
        const mtime = nextMark();
        await nfs.setattr(found.handle, { size: 0, mtime }, { ...limits, ifChangedAt });
        // Not every server checks the guard and sets the time atomically: of two concurrent callers, the last one wins.
        const now = await nfs.getattr(found.handle, limits);
        return isSameMark(now.mtime, now.mtimeNs, mtime);
      } catch (cause) {
        if (isNfsError(cause, 'NOT_SYNC', 'STALE', 'BADHANDLE', 'NOENT')) return false;
        throw asSystemError(cause);
      }
    },
    link: async (from, to) => {
      const found = await find(from);
      if (found === undefined) throw Object.assign(new Error(`${from} does not exist`), { code: 'ENOENT' });
      await inParent(to, (directory, name) => nfs.link(found.handle, { directory, name }, limits));
    },
    names: (folder) =>
      folders.inFolder(folder, (handle) => namesOf(listDirectory(nfs, handle, { ...listing, namesOnly: true }))),
    list: (folder) =>
      folders.inFolder(folder, async (handle) => {
        const entries: Entry[] = [];
        for await (const page of listDirectory(nfs, handle, listing))
          await eachBounded(page, 16, async (entry) => {
            const attributes = entry.attributes ?? (await find(`${folder}/${entry.name}`))?.attributes;
            if (attributes === undefined) return;
            const mark = `${attributes.fileId} ${attributes.ctime}.${attributes.ctimeNs}`;
            const isEmpty = attributes.type === fileType.regular && attributes.size === 0;
            entries.push({ name: entry.name, type: typeOf(attributes), mark, isEmpty });
          });
        return entries;
      }),
    read: async (path, limit) => {
      for (let attempt = 1; ; attempt++) {
        try {
          return await readFound(path, limit);
        } catch (cause) {
          // Another host replaced the file between two calls.
          if (attempt >= maxReadAttempts || !isNfsError(cause, 'STALE', 'BADHANDLE', 'NOENT'))
            throw asSystemError(cause);
        }
      }
    },
    writeNew: async (path, text) => writeOrRemove(path, await createFile(path), text),
    write: async (path, text) =>
      writeDurably(nfs, { path, handle: (await find(path))?.handle ?? (await createFile(path)) }, text, limits),
    overwrite: async (path, text, limit) => {
      const { handle, attributes } = (await undefinedIfFolderAbsent(find(path))) ?? {};
      if (handle === undefined || attributes?.type !== fileType.regular || attributes.size > limit) return false;
      try {
        await writeDurably(
          nfs,
          { path, handle },
          text + ' '.repeat(Math.max(0, attributes.size - Buffer.byteLength(text))),
          limits,
        );
        return true;
      } catch (cause) {
        // The file was removed or replaced after LOOKUP.
        if (isErrno(cause, 'ENOENT', 'ESTALE')) return false;
        throw cause;
      }
    },
    writeNewUnless: async (beside, path, text) => {
      // Send both calls at the same time. Write the text, which makes the file a record, only after both replies.
      const [data, made] = await Promise.allSettled([undefinedIfFolderAbsent(find(beside)), createFile(path)]);
      if (made.status === 'rejected') {
        if (isErrno(made.reason, 'EEXIST')) return 'exists';
        throw made.reason;
      }
      if (data.status === 'fulfilled' && data.value === undefined) {
        await writeOrRemove(path, made.value, text);
        return 'written';
      }
      await unlink(path);
      if (data.status === 'rejected') throw data.reason;
      return 'exists';
    },
    newFolder: (path, mode) => mkdir(path, { mode }),
    makeFolder: async (path, mode = 0o700) => {
      // Check first: not every server refuses to create an existing folder.
      const existing = await lstat(path);
      if (existing?.type === 'directory') return;
      try {
        await mkdir(path, { mode });
      } catch (cause) {
        if (!isErrno(cause, 'EEXIST') || (await lstat(path))?.type !== 'directory') throw cause;
      }
    },
    touch: (folder) => folders.inFolder(folder, (handle) => touch(nfs, handle, limits)),
    handle: (path) => folders.inFolder(path, async (handle) => handle),
    rename: async (from, to) => {
      try {
        await folders.inParents(from, to, (source, target) => nfs.rename(source, target, limits));
        return true;
      } catch (cause) {
        // ENOENT means that either `from` or the folder of `to` is missing.
        if (!isErrno(cause, 'ENOENT') || (await find(from)) !== undefined) throw cause;
        return false;
      } finally {
        folders.forget(from);
      }
    },
    rmdir: async (path) => {
      await inParent(path, (folder, name) => nfs.rmdir(folder, name, limits));
      folders.forget(path);
    },
    removeAll: async (path) => {
      await inParent(path, (folder, name) => removeTree(nfs, folder, name, limits));
      folders.forget(path);
    },
    emptyFolder: (folder, scope) => folders.inFolder(folder, (handle) => emptyFolder(nfs, handle, scope, limits)),
    scan: (top, signal) => folders.inFolder(top, (handle) => scanTree(nfs, handle, signal, limits)),
    // The server makes each change durable before it answers: RFC 1813, section 4.8.
    sync: async () => undefined,
  };
}

function refuseUnsuitable({ type, size }: Attributes, limit: number): void {
  if (type === fileType.link) throw new UnsuitableFile('it is a symbolic link');
  if (type === fileType.directory) throw new UnsuitableFile('it is a directory');
  if (type !== fileType.regular) throw new UnsuitableFile('it is not a plain file');
  if (size > limit) throw new UnsuitableFile(`it is larger than ${limit} bytes`);
}

async function touch(nfs: NfsClient, handle: FileHandle, limits: { readonly deadlineMs: number }): Promise<number> {
  const { after } = await nfs.setattr(handle, { mtime: 'now' }, limits);
  const { mtime, mtimeNs } = after ?? (await nfs.getattr(handle, limits));
  return toMs(mtime, mtimeNs);
}

/** Treats a missing folder like a missing file. */
export async function undefinedIfFolderAbsent<T>(found: Promise<T>): Promise<T | undefined> {
  try {
    return await found;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR')) return undefined;
    throw cause;
  }
}
