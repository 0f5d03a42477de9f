import { createLimiter } from '#base/limiter.ts';
import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { isGone, isNfsError } from './status.ts';
import { type EntryPlus, type FileHandle, fileType, nameOf } from './structures.ts';
import {
  defaultAtOnce,
  forEachEntry,
  pathOf,
  type ResolvedEntry,
  type TreeOptions,
  type Visit,
  type WalkedDirectory,
  walkDirectories,
} from './walk-tree.ts';

/** The limit on passes over a directory that other clients keep filling. */
const maxPasses = 100;
/** If a directory has more subdirectories, these are removed first, and then the directory is listed again. */
const maxChildrenPerPass = 10_000;

/** Another file system is mounted in the tree that was to be removed. */
class ForeignFileSystem extends Error {
  override readonly name = 'ForeignFileSystem';
}

/** The server refused to remove some objects of the tree. Everything else was removed. The cause is the first refusal. */
export class RemovalRefused extends Error {
  override readonly name = 'RemovalRefused';
  readonly refusals: number;
  constructor(cause: Error, path: string, refusals: number) {
    super(`${path}: ${cause.message}${refusals > 1 ? `; ${refusals - 1} more refused` : ''}`, { cause });
    this.refusals = refusals;
  }
}

/**
 * Whether the error concerns one object only. Any other error concerns the server or the whole file system, so there is no point
 * in trying the next object.
 */
const isRefusal = (cause: unknown): cause is Error =>
  cause instanceof ForeignFileSystem ||
  isNfsError(
    cause,
    'ACCES',
    'PERM',
    'NOTEMPTY',
    'EXIST',
    'ISDIR',
    'NOTDIR',
    'IO',
    'INVAL',
    'NAMETOOLONG',
    'SERVERFAULT',
  );

/** Keeps the first refusal and the number of refusals, since there can be too many to keep. */
function createRefusals() {
  let count = 0;
  let first: { readonly cause: Error; readonly path: string } | undefined;
  return {
    /** Throws errors that are not refusals. */
    add: (cause: unknown, folder: WalkedDirectory, ...below: readonly Text[]): void => {
      if (!isRefusal(cause)) throw cause;
      count++;
      first ??= { cause, path: pathOf(folder, ...below) };
      folder.hasFailures = true;
    },
    throwIfAny: (): void => {
      if (first !== undefined) throw new RemovalRefused(first.cause, first.path, count);
    },
  };
}

/**
 * Removes everything in a directory but not the directory, and nothing on other file systems that are mounted in it. It removes
 * links without following them, ignores objects that other clients remove meanwhile, and removes objects that they add. It
 * reports objects that the server refuses to remove at the end. After an interruption, the next call continues.
 */
export async function emptyDirectory(
  client: NfsClient,
  directory: FileHandle,
  options: TreeOptions = {},
): Promise<void> {
  const limit = createLimiter(options.atOnce ?? defaultAtOnce);
  const { fsid } = await client.getattr(directory, options);
  const refusals = createRefusals();
  const doneAtPassStart = new WeakMap<WalkedDirectory, number>();
  let done = 0;

  async function removeFile(parent: FileHandle, entry: EntryPlus, expected: FileHandle): Promise<void> {
    try {
      await limit.run(() => client.remove(parent, nameOf(entry), { ...options, expected }));
    } catch (cause) {
      if (!isGone(cause)) throw cause;
    }
    options.onProgress?.(++done);
  }

  const visit: Visit = async (folder, into) => {
    folder.passes++;
    folder.isPartial = false;
    doneAtPassStart.set(folder, done);
    const remove = async (entry: EntryPlus, { handle, attributes }: ResolvedEntry): Promise<void> => {
      if (attributes.type !== fileType.directory) return await removeFile(folder.handle, entry, handle);
      if (attributes.fsid !== fsid) throw new ForeignFileSystem('another file system is mounted there');
      return into({ handle, name: nameOf(entry) });
    };
    try {
      await forEachEntry(client, folder.handle, limit, options, remove, {
        isEnough: () => {
          folder.isPartial = folder.children > maxChildrenPerPass;
          return folder.isPartial;
        },
        onFailure: (cause, entry) => refusals.add(cause, folder, nameOf(entry)),
      });
    } catch (cause) {
      refusals.add(cause, folder);
    }
  };

  async function finishDirectory(folder: WalkedDirectory): Promise<'again' | 'done'> {
    const { parent, name, isPartial, hasFailures } = folder;
    // A new listing finds the refused objects again. So list again only if other objects were removed.
    if (isPartial && (!hasFailures || (done > (doneAtPassStart.get(folder) ?? 0) && folder.passes < maxPasses))) {
      // Count only passes with failures.
      if (!hasFailures) folder.passes--;
      return 'again';
    }
    if (parent === undefined) return 'done';
    if (hasFailures) {
      parent.hasFailures = true;
      return 'done';
    }
    try {
      await limit.run(() => client.rmdir(parent.handle, name, { ...options, expected: folder.handle }));
      options.onProgress?.(++done);
    } catch (cause) {
      // Some servers return IO instead of NOTEMPTY.
      if (isNfsError(cause, 'NOTEMPTY', 'EXIST', 'IO') && folder.passes < maxPasses) return 'again';
      if (!isGone(cause) && !isNfsError(cause, 'NOTDIR')) refusals.add(cause, parent, name);
    }
    return 'done';
  }

  await walkDirectories(directory, visit, finishDirectory);
  refusals.throwIfAny();
}

/** Removes a directory with everything in it, as far as the server allows. Succeeds if it does not exist. */
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
      if (type === fileType.directory) {
        await emptyDirectory(client, handle, options);
        await client.rmdir(parent, name, { ...options, expected: handle });
      } else await client.remove(parent, name, { ...options, expected: handle });
      return;
    } catch (cause) {
      if (isGone(cause)) return;
      if (!isNfsError(cause, 'NOTEMPTY', 'EXIST', 'IO') || pass >= maxPasses) throw cause;
    }
  }
}
