import { type FileHandle, fileType, isNfsError, type NfsClient } from '#wire/nfs3/index.ts';
import { asSystemError } from './system-error.ts';

/**
 * Resolves paths to handles, and caches those of the store's own folders. If a handle is stale (the server was restarted, or the folder
 * was recreated), resolves the path again and retries once.
 */
export interface Folders {
  /** Calls `work` with the parent folder of a path and the name in it. Converts the server's errors to errno codes. */
  inParent<T>(path: string, work: (folder: FileHandle, name: string) => Promise<T>): Promise<T>;
  /** Calls `work` with the parent folders and names of two paths. */
  inParents<T>(from: string, to: string, work: (from: Location, to: Location) => Promise<T>): Promise<T>;
  /** Calls `work` with the folder itself. */
  inFolder<T>(path: string, work: (folder: FileHandle) => Promise<T>): Promise<T>;
  /** Drops cached handles after the path was moved or removed. */
  forget(path: string): void;
}

interface Location {
  readonly directory: FileHandle;
  readonly name: string;
}

export interface FoldersParts {
  readonly nfs: NfsClient;
  /** The prefix of every path. */
  readonly root: string;
  readonly rootHandle: () => FileHandle;
  /** Called after a stale handle: makes sure that `rootHandle` returns a valid one. */
  readonly remount: () => Promise<void>;
  readonly deadlineMs: number;
}

/** `.stowage` and its direct children. */
const isCached = (names: readonly string[]): boolean => names[0] === '.stowage' && names.length <= 2;

export function createFolders({ nfs, root, rootHandle, remount, deadlineMs }: FoldersParts): Folders {
  const cachedHandles = new Map<string, FileHandle>();

  const namesOf = (path: string): string[] => {
    if (path === root) return [];
    if (!path.startsWith(`${root}/`)) throw new Error(`${path} is not in ${root}`);
    return path.slice(root.length + 1).split('/');
  };

  async function handleOf(names: readonly string[]): Promise<FileHandle> {
    const last = names.at(-1);
    if (last === undefined) return rootHandle();
    const key = names.join('/');
    const known = cachedHandles.get(key);
    if (known !== undefined) return known;
    const { handle, attributes } = await nfs.lookup(await handleOf(names.slice(0, -1)), last, { deadlineMs });
    const { type } = attributes ?? (await nfs.getattr(handle, { deadlineMs }));
    // Never follow a symbolic link: it could lead anywhere.
    if (type !== fileType.directory) throw Object.assign(new Error(`${key} is not a directory`), { code: 'ENOTDIR' });
    if (isCached(names)) cachedHandles.set(key, handle);
    return handle;
  }

  async function retryOnStaleHandle<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (cause) {
      if (!isNfsError(cause, 'STALE', 'BADHANDLE')) throw asSystemError(cause);
      cachedHandles.clear();
      await remount();
    }
    try {
      return await work();
    } catch (cause) {
      throw asSystemError(cause);
    }
  }

  async function locate(path: string): Promise<Location> {
    const names = namesOf(path);
    const name = names.pop();
    if (name === undefined) throw new Error(`${path} is the root`);
    return { directory: await handleOf(names), name };
  }

  return {
    inParent: (path, work) =>
      retryOnStaleHandle(async () => {
        const { directory, name } = await locate(path);
        return work(directory, name);
      }),
    inParents: (from, to, work) => retryOnStaleHandle(async () => work(await locate(from), await locate(to))),
    inFolder: (path, work) => retryOnStaleHandle(async () => work(await handleOf(namesOf(path)))),
    forget: (path) => {
      const key = namesOf(path).join('/');
      for (const cachedKey of cachedHandles.keys())
        if (cachedKey === key || cachedKey.startsWith(`${key}/`)) cachedHandles.delete(cachedKey);
    },
  };
}
