import { createLimiter } from '#base/limiter.ts';
import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { isNfsError } from './status.ts';
import { type EntryPlus, type FileHandle, fileType, nameOf } from './structures.ts';
import {
  defaultAtOnce,
  forEachEntry,
  isGone,
  pathOf,
  type ResolvedEntry,
  type TreeOptions,
  type Visit,
  type WalkedDirectory,
  walkDirectories,
} from './walk-tree.ts';

/** A directory that others fill while it is emptied is emptied again, but not for ever. */
const maxPasses = 100;
/** Of one directory that is being emptied: then these come first, and the rest of it when it is listed again. */
const maxChildren = 10_000;

/** Another file system is mounted in the tree that was to be removed. */
class ForeignFileSystem extends Error {
  override readonly name = 'ForeignFileSystem';
}

/** Something in the tree could not be removed, and the rest was. The cause is the first refusal. */
export class RemovalRefused extends Error {
  override readonly name = 'RemovalRefused';
  readonly refusals: number;
  constructor(cause: Error, path: string, refusals: number) {
    super(`${path}: ${cause.message}${refusals > 1 ? `; ${refusals - 1} more refused` : ''}`, { cause });
    this.refusals = refusals;
  }
}

/** About one thing in the tree. Anything else is about the server, or the whole file system: no reason to try the next. */
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

/** Keeps the first of them, and counts: there can be any number. */
function createRefusals() {
  let count = 0;
  let first: { readonly cause: Error; readonly path: string } | undefined;
  return {
    /** Throws what is no refusal. */
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
 * Removes everything in a directory, and not the directory; nothing of another file system that is mounted in it. Links
 * are removed, never followed; what others remove meanwhile is fine; what they add is removed too. What the server refuses
 * is left, and said in the end. Stopped at any point, it goes on at the next call.
 */
export async function emptyDirectory(
  client: NfsClient,
  directory: FileHandle,
  options: TreeOptions = {},
): Promise<void> {
  const limit = createLimiter(options.atOnce ?? defaultAtOnce);
  const { fsid } = await client.getattr(directory, options);
  const refusals = createRefusals();
  const doneBefore = new WeakMap<WalkedDirectory, number>();
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
    doneBefore.set(folder, done);
    const remove = async (entry: EntryPlus, { handle, attributes }: ResolvedEntry): Promise<void> => {
      if (attributes.type !== fileType.directory) return await removeFile(folder.handle, entry, handle);
      if (attributes.fsid !== fsid) throw new ForeignFileSystem('another file system is mounted there');
      return into({ handle, name: nameOf(entry) });
    };
    try {
      await forEachEntry(client, folder.handle, limit, options, remove, {
        isEnough: () => {
          folder.isPartial = folder.children > maxChildren;
          return folder.isPartial;
        },
        failed: (cause, entry) => refusals.add(cause, folder, nameOf(entry)),
      });
    } catch (cause) {
      refusals.add(cause, folder);
    }
  };

  async function finishDirectory(folder: WalkedDirectory): Promise<'again' | 'done'> {
    const { parent, name, isPartial, hasFailures } = folder;
    // What was left is found again: only where something else went is there more to see.
    if (isPartial && (!hasFailures || (done > (doneBefore.get(folder) ?? 0) && folder.passes < maxPasses))) {
      // Only passes that find it filled anew are counted, and those that leave something.
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
      // Some servers say IO where they mean NOTEMPTY.
      if (isNfsError(cause, 'NOTEMPTY', 'EXIST', 'IO') && folder.passes < maxPasses) return 'again';
      if (!isGone(cause) && !isNfsError(cause, 'NOTDIR')) refusals.add(cause, parent, name);
    }
    return 'done';
  }

  await walkDirectories(directory, visit, finishDirectory);
  refusals.throwIfAny();
}

/** Removes a directory with everything in it, as far as the server lets us. Absent is success. */
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
