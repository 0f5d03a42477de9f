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

export const defaultAtOnce = 32;
/** Directories that are listed at once; deeper ones first, so that what waits stays small. */
const listingWorkers = 4;
/** Directories that are known and not done: a tree that has more is without end, or too large for our memory. */
const maxUnfinished = 250_000;

/** What a directory becomes on its way: its children are counted, and it is done when none is left. */
export interface WalkedDirectory {
  readonly handle: FileHandle;
  readonly parent: WalkedDirectory | undefined;
  readonly name: Text;
  children: number;
  passes: number;
  /** Not all of it was looked at. */
  isPartial: boolean;
  /** Something in it could not be dealt with. */
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
  into: (child: Pick<WalkedDirectory, 'handle' | 'name'>) => void,
) => Promise<void>;

/** Hands directories to a few workers, deepest first, and tells when each of them has no unfinished children. */
export async function walkDirectories(
  root: FileHandle,
  visit: Visit,
  leave: (folder: WalkedDirectory) => Promise<'again' | 'done'>,
): Promise<void> {
  const stack: WalkedDirectory[] = [newWalkedDirectory(root, undefined, '')];
  let left = 1;
  let wake = Promise.withResolvers<void>();
  let failure: { readonly cause: unknown } | undefined;

  const push = (folder: WalkedDirectory): void => {
    stack.push(folder);
    wake.resolve();
    wake = Promise.withResolvers();
  };

  async function finish(folder: WalkedDirectory): Promise<void> {
    for (let one: WalkedDirectory | undefined = folder; one !== undefined && --one.children === 0; one = one.parent) {
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
          if (left >= maxUnfinished) throw new Error('the tree has more directories than can be kept in mind');
          folder.children++;
          left++;
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

/** Of a directory, or of something in it, from the root of the descent; names joined by '/'. */
export function pathOf(folder: WalkedDirectory, ...below: readonly Text[]): string {
  const names = below.map(toDisplayName);
  for (let one = folder; one.parent !== undefined; one = one.parent) names.unshift(toDisplayName(one.name));
  return names.length === 0 ? '.' : names.join('/');
}

const toDisplayName = (name: Text): string => (typeof name === 'string' ? name : Buffer.from(name).toString());

export const isGone = (thrown: unknown): boolean => isNfsError(thrown, 'NOENT', 'STALE', 'BADHANDLE');

export interface ResolvedEntry {
  readonly handle: FileHandle;
  readonly attributes: Attributes;
}

/** The handle and attributes of an entry, asked for where the listing has none. Undefined: it is gone by now. */
async function resolveEntry(
  client: NfsClient,
  directory: FileHandle,
  entry: EntryPlus,
  options: CallOptions,
): Promise<ResolvedEntry | undefined> {
  try {
    // Once: an entry reads them anew each time.
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

/** What is in a directory, with handle and attributes, page by page. A directory that is gone by now holds nothing. */
export async function forEachEntry(
  client: NfsClient,
  directory: FileHandle,
  limit: Limiter,
  options: CallOptions,
  work: (entry: EntryPlus, about: ResolvedEntry) => Promise<void>,
  {
    isEnough = () => false,
    failed = (cause) => {
      throw cause;
    },
  }: {
    readonly isEnough?: () => boolean;
    /** For one of them. Returns: the others are gone on with. */
    readonly failed?: (cause: unknown, entry: EntryPlus) => void;
  } = {},
): Promise<void> {
  try {
    for await (const page of listDirectory(client, directory, options)) {
      options.signal?.throwIfAborted();
      await Promise.all(
        page.map(async (entry) => {
          try {
            const about = await limit.run(() => resolveEntry(client, directory, entry, options));
            if (about !== undefined) await work(entry, about);
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
  /** From the root of the walk; names joined by '/'. */
  readonly path: string;
  readonly entry: EntryPlus;
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
  const visit: Visit = (folder, into) =>
    forEachEntry(client, folder.handle, limit, options, async (entry, about) => {
      const wanted = await onEntry({ ...about, entry, parent: folder.handle, path: pathOf(folder, entry.name) });
      options.onProgress?.(++done);
      if (wanted !== false && about.attributes.type === fileType.directory)
        into({ handle: about.handle, name: nameOf(entry) });
    });

  await walkDirectories(directory, visit, async () => 'done');
}
