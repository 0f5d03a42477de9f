import { createLimiter, type Limiter } from '#base/limiter.ts';
import type { CallOptions } from '../rpc/client.ts';
import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { listDirectory } from './listing.ts';
import { isNfsError } from './status.ts';
import { type Attributes, type EntryPlus, type FileHandle, fileType, nameOf } from './structures.ts';

export interface TreeOptions extends CallOptions {
  /** Calls under way at once. */
  readonly atOnce?: number;
  /** Called now and then with how many things have been dealt with. */
  readonly onProgress?: ((done: number) => void) | undefined;
}

const defaultAtOnce = 32;
/** Directories that are listed at once; deeper ones first, so that what waits stays small. */
const listedAtOnce = 4;
/** A directory that others fill while it is emptied is emptied again, but not for ever. */
const mostPasses = 100;
/** Directories that are known and not done: a tree that has more is without end, or too large for our memory. */
const mostUnfinished = 250_000;
/** Of one directory that is being emptied: then these come first, and the rest of it when it is listed again. */
const mostChildren = 10_000;

/** What a directory becomes on its way: its children are counted, and it is done when none is left. */
interface Folder {
  readonly handle: FileHandle;
  readonly parent: Folder | undefined;
  readonly name: Text;
  children: number;
  passes: number;
  /** Not all of it was looked at. */
  isCut: boolean;
}

const newFolder = (handle: FileHandle, parent: Folder | undefined, name: Text): Folder => ({
  ...{ handle, parent, name, children: 1, passes: 0, isCut: false },
});

type Visit = (folder: Folder, descend: (child: Pick<Folder, 'handle' | 'name'>) => void) => Promise<void>;

/** Hands directories to a few workers, deepest first, and tells when each of them has no unfinished children. */
function createDescent(
  root: Folder,
  visit: Visit,
  leave: (folder: Folder) => Promise<'again' | 'done'>,
): { run(): Promise<void> } {
  const stack: Folder[] = [root];
  let left = 1;
  let wake = Promise.withResolvers<void>();
  let failure: { readonly cause: unknown } | undefined;

  const push = (folder: Folder): void => {
    stack.push(folder);
    wake.resolve();
    wake = Promise.withResolvers();
  };

  async function finish(folder: Folder): Promise<void> {
    for (let one: Folder | undefined = folder; one !== undefined && --one.children === 0; one = one.parent) {
      if ((await leave(one)) === 'again') return push(Object.assign(one, { children: 1 }));
      left--;
    }
    if (left === 0) wake.resolve();
  }

  async function worker(): Promise<void> {
    while (left > 0 && failure === undefined) {
      const folder = stack.pop();
      if (folder === undefined) {
        await wake.promise;
        continue;
      }
      try {
        await visit(folder, ({ handle, name }) => {
          if (left >= mostUnfinished) throw new Error('the tree has more directories than can be kept in mind');
          folder.children++;
          left++;
          push(newFolder(handle, folder, name));
        });
        await finish(folder);
      } catch (cause) {
        failure ??= { cause };
        wake.resolve();
      }
    }
  }

  return {
    run: async () => {
      await Promise.all(Array.from({ length: listedAtOnce }, worker));
      if (failure !== undefined) throw failure.cause;
    },
  };
}

const isGone = (thrown: unknown): boolean => isNfsError(thrown, 'NOENT', 'STALE', 'BADHANDLE');

/** The handle and attributes of an entry, asked for where the listing has none. Undefined: it is gone by now. */
async function known(
  client: NfsClient,
  directory: FileHandle,
  entry: EntryPlus,
  options: CallOptions,
): Promise<{ readonly handle: FileHandle; readonly attributes: Attributes } | undefined> {
  try {
    const { handle, attributes } =
      entry.handle === undefined || entry.attributes === undefined
        ? await client.lookup(directory, nameOf(entry), options)
        : { handle: entry.handle, attributes: entry.attributes };
    return { handle, attributes: attributes ?? (await client.getattr(handle, options)) };
  } catch (cause) {
    if (isGone(cause)) return undefined;
    throw cause;
  }
}

/** What is in a directory, with handle and attributes, page by page. A directory that is gone by now holds nothing. */
async function eachKnown(
  client: NfsClient,
  directory: FileHandle,
  limit: Limiter,
  options: CallOptions,
  work: (entry: EntryPlus, about: NonNullable<Awaited<ReturnType<typeof known>>>) => Promise<void>,
  isEnough: () => boolean = () => false,
): Promise<void> {
  try {
    for await (const page of listDirectory(client, directory, options)) {
      options.signal?.throwIfAborted();
      await Promise.all(
        page.map(async (entry) => {
          const about = await limit.run(() => known(client, directory, entry, options));
          if (about !== undefined) await work(entry, about);
        }),
      );
      if (isEnough()) return;
    }
  } catch (cause) {
    if (!isGone(cause)) throw cause;
  }
}

/** Another file system is mounted in the tree that was to be removed. */
class ForeignFileSystem extends Error {
  override readonly name = 'ForeignFileSystem';
}

/**
 * Removes everything in a directory, and not the directory; nothing of another file system that is mounted in it. Links are removed, never followed; what others remove
 * meanwhile is fine; what they add is removed too. Stopped at any point, it goes on at the next call.
 */
export async function emptyDirectory(
  client: NfsClient,
  directory: FileHandle,
  options: TreeOptions = {},
): Promise<void> {
  const limit = createLimiter(options.atOnce ?? defaultAtOnce);
  const { fsid } = await client.getattr(directory, options);
  let done = 0;

  async function removeFile(parent: FileHandle, entry: EntryPlus): Promise<void> {
    try {
      await limit.run(() => client.remove(parent, nameOf(entry), options));
    } catch (cause) {
      if (!isGone(cause)) throw cause;
    }
    options.onProgress?.(++done);
  }

  const visit: Visit = async (folder, descend) => {
    folder.passes++;
    folder.isCut = false;
    const remove = async (entry: EntryPlus, { handle, attributes }: Pick<Visited, 'handle' | 'attributes'>) => {
      if (attributes.type !== fileType.directory) return await removeFile(folder.handle, entry);
      if (attributes.fsid !== fsid) throw new ForeignFileSystem(`another file system is mounted at ${entry.name}`);
      return descend({ handle, name: nameOf(entry) });
    };
    await eachKnown(client, folder.handle, limit, options, remove, () => {
      folder.isCut = folder.children > mostChildren;
      return folder.isCut;
    });
  };

  async function leave(folder: Folder): Promise<'again' | 'done'> {
    const { parent, name, passes, isCut } = folder;
    if (isCut) {
      // Only passes that find it filled anew are counted.
      folder.passes--;
      return 'again';
    }
    if (parent === undefined) return 'done';
    try {
      await limit.run(() => client.rmdir(parent.handle, name, options));
      options.onProgress?.(++done);
    } catch (cause) {
      // Some servers say IO where they mean NOTEMPTY.
      if (isNfsError(cause, 'NOTEMPTY', 'EXIST', 'IO') && passes < mostPasses) return 'again';
      if (!isGone(cause) && !isNfsError(cause, 'NOTDIR')) throw cause;
    }
    return 'done';
  }

  await createDescent(newFolder(directory, undefined, ''), visit, leave).run();
}

/** Removes a directory with everything in it. Absent is success. */
export async function removeTree(
  client: NfsClient,
  parent: FileHandle,
  name: Text,
  options: TreeOptions = {},
): Promise<void> {
  for (let pass = 0; ; pass++) {
    try {
      const { handle, attributes } = await client.lookup(parent, name, options);
      const { type } = attributes ?? (await client.getattr(handle, options));
      if (type !== fileType.directory) return await client.remove(parent, name, options);
      await emptyDirectory(client, handle, options);
      return await client.rmdir(parent, name, options);
    } catch (cause) {
      if (isGone(cause)) return;
      if (!isNfsError(cause, 'NOTEMPTY', 'EXIST', 'IO') || pass >= mostPasses) throw cause;
    }
  }
}

export interface Visited {
  /** From the root of the walk; names joined by '/'. */
  readonly path: string;
  readonly entry: EntryPlus;
  readonly attributes: Attributes;
  readonly handle: FileHandle;
  /** The directory it is in. */
  readonly parent: FileHandle;
}

/** Calls `onEntry` for everything below a directory, in no particular order. Links are not followed. */
export async function walkTree(
  client: NfsClient,
  directory: FileHandle,
  /** False: what is below it is left out. */
  onEntry: (visited: Visited) => Promise<unknown> | unknown,
  options: TreeOptions = {},
): Promise<void> {
  const limit = createLimiter(options.atOnce ?? defaultAtOnce);
  let done = 0;
  const pathOf = (folder: Folder | undefined, name: string): string => {
    const names = [name];
    for (let one = folder; one?.parent !== undefined; one = one.parent) names.unshift(shown(one.name));
    return names.join('/');
  };

  const visit: Visit = (folder, descend) =>
    eachKnown(client, folder.handle, limit, options, async (entry, about) => {
      const wanted = await onEntry({ ...about, entry, parent: folder.handle, path: pathOf(folder, entry.name) });
      options.onProgress?.(++done);
      if (wanted !== false && about.attributes.type === fileType.directory)
        descend({ handle: about.handle, name: nameOf(entry) });
    });

  await createDescent(newFolder(directory, undefined, ''), visit, async () => 'done').run();
}

const shown = (name: Text): string => (typeof name === 'string' ? name : Buffer.from(name).toString());
