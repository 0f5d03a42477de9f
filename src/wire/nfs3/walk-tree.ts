import { createLimiter, type Limiter } from '#base/limiter.ts';
import type { CallOptions } from '../rpc/client.ts';
import type { Text } from '../xdr/writer.ts';
import type { NfsClient } from './client.ts';
import { listDirectory } from './listing.ts';
import { isGone } from './status.ts';
import { type Attributes, type EntryPlus, type FileHandle, fileType, nameOf } from './structures.ts';

export interface TreeOptions extends CallOptions {
  /** The number of calls in flight. */
  readonly atOnce?: number;
  /** Called periodically with the number of objects that are done. */
  readonly onProgress?: ((done: number) => void) | undefined;
}

export const defaultAtOnce = 32;
/** The number of directories that are listed at the same time. The walk takes the deepest directories first, so that few directories have to wait. */
const listingWorkers = 4;
/** The limit on directories that were found and are not finished. A tree with more of them is endless, or too large for memory. */
const maxUnfinishedDirectories = 250_000;

/** The state of a directory during a walk. It is finished when no child is unfinished. */
export interface WalkedDirectory {
  readonly handle: FileHandle;
  readonly parent: WalkedDirectory | undefined;
  readonly name: Text;
  children: number;
  passes: number;
  /** Only part of it was listed. */
  isPartial: boolean;
  /** Something in it failed. */
  hasFailures: boolean;
}

const newWalkedDirectory = (handle: FileHandle, parent: WalkedDirectory | undefined, name: Text): WalkedDirectory => ({
  handle,
  parent,
  name,
  children: 1,
  passes: 0,
  isPartial: false,
  hasFailures: false,
});

export type Visit = (
  folder: WalkedDirectory,
  enter: (child: Pick<WalkedDirectory, 'handle' | 'name'>) => void,
) => Promise<void>;

/** Passes directories to a few workers, deepest first, and calls `finishDirectory` for each one without unfinished children. */
export async function walkDirectories(
  root: FileHandle,
  visit: Visit,
  finishDirectory: (folder: WalkedDirectory) => Promise<'again' | 'done'>,
): Promise<void> {
  const stack: WalkedDirectory[] = [newWalkedDirectory(root, undefined, '')];
  let unfinished = 1;
  let wake = Promise.withResolvers<void>();
  let failure: { readonly cause: unknown } | undefined;

  const push = (folder: WalkedDirectory): void => {
    stack.push(folder);
    wake.resolve();
    wake = Promise.withResolvers();
  };

  async function finish(folder: WalkedDirectory): Promise<void> {
    for (let one: WalkedDirectory | undefined = folder; one !== undefined && --one.children === 0; one = one.parent) {
      if ((await finishDirectory(one)) === 'again') return push(Object.assign(one, { children: 1 }));
      unfinished--;
    }
    if (unfinished === 0) wake.resolve();
  }

  async function worker(): Promise<void> {
    while (unfinished > 0 && failure === undefined) {
      const folder = stack.pop();
      if (folder === undefined) {
        await wake.promise;
        continue;
      }
      try {
        await visit(folder, ({ handle, name }) => {
          if (unfinished >= maxUnfinishedDirectories) throw new Error('the tree has too many directories to walk it');
          folder.children++;
          unfinished++;
          push(newWalkedDirectory(handle, folder, name));
        });
        await finish(folder);
      } catch (cause) {
        failure ??= { cause };
        wake.resolve();
      }
    }
  }

  await Promise.all(Array.from({ length: listingWorkers }, worker));
  if (failure !== undefined) throw failure.cause;
}

/** The path of a directory, or of an object in it, relative to the root of the walk. */
export function pathOf(folder: WalkedDirectory, ...below: readonly Text[]): string {
  const names = below.map(toDisplayName);
  for (let one = folder; one.parent !== undefined; one = one.parent) names.unshift(toDisplayName(one.name));
  return names.length === 0 ? '.' : names.join('/');
}

const toDisplayName = (name: Text): string => (typeof name === 'string' ? name : Buffer.from(name).toString());

export interface ResolvedEntry {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

/** Returns the handle and attributes of an entry; looks them up if the listing has none. Undefined: the entry is gone. */
async function resolveEntry(
  client: NfsClient,
  directory: FileHandle,
  entry: EntryPlus,
  options: CallOptions,
): Promise<ResolvedEntry | undefined> {
  try {
    // Read each once: the entry decodes them on each access.
    const listed = { handle: entry.handle, attributes: entry.attributes };
    const { handle, attributes } =
      listed.handle === undefined || listed.attributes === undefined
        ? await client.lookup(directory, nameOf(entry), options)
        : { ...listed, handle: listed.handle };
    return { handle, attributes: attributes ?? (await client.getattr(handle, options)) };
  } catch (cause) {
    if (isGone(cause)) return undefined;
    throw cause;
  }
}

/**
 * Calls `work` for each entry of a directory with its handle and attributes, page by page. A deleted directory has no entries.
 */
export async function forEachEntry(
  client: NfsClient,
  directory: FileHandle,
  limit: Limiter,
  options: CallOptions,
  work: (entry: EntryPlus, resolved: ResolvedEntry) => Promise<void>,
  {
    isEnough = () => false,
    onFailure: failed = (cause) => {
      throw cause;
    },
  }: {
    readonly isEnough?: () => boolean;
    /** Called if `work` fails for an entry. If it returns, the other entries continue. */
    readonly onFailure?: (cause: unknown, entry: EntryPlus) => void;
  } = {},
): Promise<void> {
  try {
    for await (const page of listDirectory(client, directory, options)) {
      options.signal?.throwIfAborted();
      await Promise.all(
        page.map(async (entry) => {
          try {
            const resolved = await limit.run(() => resolveEntry(client, directory, entry, options));
            if (resolved !== undefined) await work(entry, resolved);
          } catch (cause) {
            failed(cause, entry);
          }
        }),
      );
      if (isEnough()) return;
    }
  } catch (cause) {
    if (!isGone(cause)) throw cause;
  }
}

export interface Visited extends ResolvedEntry {
  /** Relative to the root of the walk. */
  readonly path: string;
  readonly entry: EntryPlus;
  /** The directory that contains it. */
  readonly parent: FileHandle;
}

/** Calls `onEntry` for everything below a directory, in no particular order. Links are not followed. */
export async function walkTree(
  client: NfsClient,
  directory: FileHandle,
  /** Return false to skip the contents of a directory. */
  onEntry: (visited: Visited) => Promise<unknown> | unknown,
  options: TreeOptions = {},
): Promise<void> {
  const limit = createLimiter(options.atOnce ?? defaultAtOnce);
  let done = 0;
  const visit: Visit = (folder, into) =>
    forEachEntry(client, folder.handle, limit, options, async (entry, about) => {
      const descends = await onEntry({ ...about, entry, parent: folder.handle, path: pathOf(folder, entry.name) });
      options.onProgress?.(++done);
      if (descends !== false && about.attributes.type === fileType.directory)
        into({ handle: about.handle, name: nameOf(entry) });
    });

  await walkDirectories(directory, visit, async () => 'done');
}
