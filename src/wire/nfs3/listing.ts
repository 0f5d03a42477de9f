import type { CallOptions } from '../rpc/client.ts';
import { XdrError } from '../xdr/reader.ts';
import type { NfsClient } from './client.ts';
import { isPossibleName } from './names.ts';
import { isNfsError } from './status.ts';
import { type EntryPlus, type FileHandle, nameOf } from './structures.ts';

export interface ListingOptions extends CallOptions {
  /** How much is asked for at once. */
  readonly bytes?: number;
}

const defaultBytes = 64 * 1024;
/** Asked for when a server finds that too much; then less. */
const leastBytes = 4096;
/** Names that are remembered, so that a listing can begin anew without giving anything twice. */
const mostRemembered = 1_000_000;
const mostRestarts = 16;
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
  const seen = new Set<string>();
  let position = { cookie: 0n, verifier: 0n };
  let restarts = 0;
  /** Entries in a row that were given before. */
  let stale = 0;
  for (;;) {
    const page = await pages.next(position).catch((cause: unknown) => {
      if (!isNfsError(cause, 'BAD_COOKIE') || position.cookie === 0n || seen.size >= mostRemembered) throw cause;
      if (++restarts > mostRestarts) throw new XdrError('the directory changes faster than the server can list it');
      return undefined;
    });
    if (page === undefined) {
      position = { cookie: 0n, verifier: 0n };
      continue;
    }
    const fresh = page.entries.filter((entry) => isPossibleName(nameOf(entry)) && !wasSeen(seen, entry));
    if (fresh.length > 0) {
      // It goes on, however often it has to begin anew.
      restarts = stale = 0;
      yield fresh;
    } else stale += Math.max(1, page.entries.length);
    if (page.isEnd) return;
    const last = page.entries.at(-1);
    // Listed anew it gives at most what it gave before; more than that is a circle.
    if (last === undefined || last.cookie === position.cookie || stale > seen.size + slack)
      throw new XdrError('the server lists a directory without coming to its end');
    position = { cookie: last.cookie, verifier: page.verifier };
  }
}

function wasSeen(seen: Set<string>, { name, bytes }: EntryPlus): boolean {
  const key = bytes === undefined ? name : `\0${Buffer.from(bytes).toString('latin1')}`;
  if (seen.has(key)) return true;
  if (seen.size < mostRemembered) seen.add(key);
  return false;
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
  let hasPlus = true;
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
          else if (isNfsError(cause, 'INVAL') && bytes > leastBytes) bytes = leastBytes;
          else throw cause;
        }
      }
    },
  };
}
