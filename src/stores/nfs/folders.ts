import { type FileHandle, fileType, isNfsError, type NfsClient } from '#wire/nfs3/index.ts';
import { asSystemError } from './system-error.ts';

/**
 * Paths as handles. The store's own folders are remembered; a server that no longer knows a handle (it was restarted, or
 * somebody removed and made the folder again) is asked for it anew, once.
 */
export interface Folders {
  /** With the folder that a path lies in, and its name there. Errors of the server carry a system's code. */
  at<T>(path: string, work: (folder: FileHandle, name: string) => Promise<T>): Promise<T>;
  /** With the folders of two paths. */
  between<T>(from: string, to: string, work: (from: Location, to: Location) => Promise<T>): Promise<T>;
  /** With the folder itself. */
  in<T>(path: string, work: (folder: FileHandle) => Promise<T>): Promise<T>;
  /** It was moved or removed. */
  forget(path: string): void;
}

interface Location {
  readonly directory: FileHandle;
  readonly name: string;
}

export interface FoldersParts {
  readonly nfs: NfsClient;
  /** What every path begins with. */
  readonly root: string;
  readonly rootHandle: () => FileHandle;
  /** The server does not know a handle any more: makes sure that `rootHandle` gives one it knows. */
  readonly renew: () => Promise<void>;
  readonly deadlineMs: number;
}

/** `.stowage`, and what lies right in it. */
const isCached = (names: readonly string[]): boolean => names[0] === '.stowage' && names.length <= 2;

export function createFolders({ nfs, root, rootHandle, renew, deadlineMs }: FoldersParts): Folders {
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
    // A link is never followed: it could lead anywhere.
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
      await renew();
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
    at: (path, work) =>
      retryOnStaleHandle(async () => {
        const { directory, name } = await locate(path);
        return work(directory, name);
      }),
    between: (from, to, work) => retryOnStaleHandle(async () => work(await locate(from), await locate(to))),
    in: (path, work) => retryOnStaleHandle(async () => work(await handleOf(namesOf(path)))),
    forget: (path) => {
      const key = namesOf(path).join('/');
      for (const each of cachedHandles.keys())
        if (each === key || each.startsWith(`${key}/`)) cachedHandles.delete(each);
    },
  };
}
