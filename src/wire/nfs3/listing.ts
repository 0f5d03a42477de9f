import type { CallOptions } from '../rpc/client.ts';
import { XdrError } from '../xdr/reader.ts';
import type { NfsClient } from './client.ts';
import { isValidName } from './names.ts';
import { isNfsError } from './status.ts';
import { type EntryPlus, type FileHandle, nameOf } from './structures.ts';

export interface ListingOptions extends CallOptions {
  /** How much is asked for at once. */
  readonly bytes?: number;
  /** A directory with more entries is not believed. */
  readonly maxEntries?: number;
  /** Without handles and attributes, which a server has to look for. */
  readonly namesOnly?: boolean;
}

const defaultBytes = 64 * 1024;
/** Asked for when a server finds that too much; then less. */
const minBytes = 4096;
const defaultMaxEntries = 10_000_000;
/** Names that are remembered, so that a listing can begin anew without giving anything twice: so many, and so much. */
const maxSeen = 500_000;
const maxSeenLength = 32 * 1024 * 1024;
const maxRestarts = 16;
const slack = 64;

/**
 * What is in a directory, page by page, without `.` and `..`. A server that no longer knows where it was is asked from
 * the beginning, and what was given before is left out. A server that goes in circles, or that invents names no
 * directory can hold, is not believed.
 */
export async function* listDirectory(
  client: Pick<NfsClient, 'readdirplus' | 'readdir'>,
  directory: FileHandle,
  options: ListingOptions = {},
): AsyncGenerator<readonly EntryPlus[], void> {
  const pages = createPages(client, directory, options);
  const { maxEntries = defaultMaxEntries } = options;
  const seen = createSeenNames();
  let given = 0;
  let position = { cookie: 0n, verifier: 0n };
  let restarts = 0;
  /** Entries in a row that were given before. */
  let stale = 0;
  for (;;) {
    const page = await pages.next(position).catch((cause: unknown) => {
      if (!isNfsError(cause, 'BAD_COOKIE') || position.cookie === 0n || seen.isFull) throw cause;
      if (++restarts > maxRestarts) throw new XdrError('the directory changes faster than the server can list it');
      return undefined;
    });
    if (page === undefined) {
      position = { cookie: 0n, verifier: 0n };
      continue;
    }
    const fresh = page.entries.filter((entry) => isValidName(nameOf(entry)) && !seen.checkAndAdd(entry));
    if (fresh.length > 0) {
      // It goes on, however often it has to begin anew.
      restarts = stale = 0;
      given += fresh.length;
      yield fresh;
    } else stale += Math.max(1, page.entries.length);
    if (page.isEnd) return;
    const last = page.entries.at(-1);
    // Listed anew it gives at most what it gave before; more than that is a circle.
    if (last === undefined || last.cookie === position.cookie || stale > seen.size + slack || given > maxEntries)
      throw new XdrError('the server lists a directory without coming to its end');
    position = { cookie: last.cookie, verifier: page.verifier };
  }
}

interface SeenNames {
  readonly size: number;
  readonly isFull: boolean;
  /** Whether it was given before. If not it is remembered, while there is room. */
  checkAndAdd(entry: EntryPlus): boolean;
}

function createSeenNames(): SeenNames {
  const names = new Set<string>();
  let length = 0;
  const isFull = (): boolean => names.size >= maxSeen || length >= maxSeenLength;
  return {
    get size() {
      return names.size;
    },
    get isFull() {
      return isFull();
    },
    checkAndAdd: ({ name, bytes }) => {
      const key = bytes === undefined ? name : `\0${Buffer.from(bytes).toString('latin1')}`;
      if (names.has(key)) return true;
      if (isFull()) return false;
      names.add(key);
      length += key.length;
      return false;
    },
  };
}

interface Page {
  readonly entries: readonly EntryPlus[];
  readonly verifier: bigint;
  readonly isEnd: boolean;
}

/** READDIRPLUS, or READDIR where a server has only that; in a size the server can do. */
function createPages(
  client: Pick<NfsClient, 'readdirplus' | 'readdir'>,
  directory: FileHandle,
  options: ListingOptions,
): { next(position: { readonly cookie: bigint; readonly verifier: bigint }): Promise<Page> } {
  let bytes = options.bytes ?? defaultBytes;
  let hasPlus = options.namesOnly !== true;
  return {
    next: async (position) => {
      for (;;) {
        const args = { directory, ...position, bytes };
        try {
          if (hasPlus) return await client.readdirplus(args, options);
          const { entries, ...page } = await client.readdir(args, options);
          return { ...page, entries: entries.map((entry) => ({ ...entry, attributes: undefined, handle: undefined })) };
        } catch (cause) {
          if (isNfsError(cause, 'NOTSUPP') && hasPlus) hasPlus = false;
          else if (isNfsError(cause, 'TOOSMALL') && bytes < defaultBytes * 4) bytes *= 4;
          else if (isNfsError(cause, 'INVAL') && bytes > minBytes) bytes = minBytes;
          else throw cause;
        }
      }
    },
  };
}
