import type { CallOptions } from '../rpc/client.ts';
import { XdrError } from '../xdr/reader.ts';
import type { NfsClient } from './client.ts';
import { isValidName } from './names.ts';
import { isNfsError } from './status.ts';
import { type EntryPlus, type FileHandle, nameOf } from './structures.ts';

export interface ListingOptions extends CallOptions {
  /** The size of a READDIR reply to request. */
  readonly bytes?: number;
  /** The listing fails beyond this number of entries. */
  readonly maxEntries?: number;
  /** Use READDIR: without handles and attributes, which the server has to look up. */
  readonly namesOnly?: boolean;
}

const defaultPageBytes = 64 * 1024;
/** The size to request from a server that rejects larger ones. */
const minPageBytes = 4096;
const defaultMaxEntries = 10_000_000;
/** Limits on the names that are remembered to restart a listing without yielding a name twice: their number and total length. */
const maxSeenNames = 500_000;
const maxSeenLength = 32 * 1024 * 1024;
const maxRestarts = 16;
const maxExtraRepeats = 64;

/**
 * Lists a directory page by page, without `.` and `..`. If the server rejects the cookie, the listing restarts from the beginning
 * and skips the names that it has already yielded. It fails if the server lists in circles, and skips names that no directory can
 * contain.
 */
export async function* listDirectory(
  client: Pick<NfsClient, 'readdirplus' | 'readdir'>,
  directory: FileHandle,
  options: ListingOptions = {},
): AsyncGenerator<readonly EntryPlus[], void> {
  const pages = createPageReader(client, directory, options);
  const { maxEntries = defaultMaxEntries } = options;
  const seen = createSeenNames();
  let yieldedEntries = 0;
  let position = { cookie: 0n, verifier: 0n };
  let restarts = 0;
  /** How many entries in a row had been yielded before. */
  let repeatedEntries = 0;
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
    const newEntries = page.entries.filter((entry) => isValidName(nameOf(entry)) && !seen.checkAndAdd(entry));
    if (newEntries.length > 0) {
      // The listing makes progress, so it may restart again.
      restarts = repeatedEntries = 0;
      yieldedEntries += newEntries.length;
      yield newEntries;
    } else repeatedEntries += Math.max(1, page.entries.length);
    if (page.isEnd) return;
    const last = page.entries.at(-1);
    // After a restart, all earlier entries may repeat once. If more repeat, the server lists in circles.
    if (
      last === undefined ||
      last.cookie === position.cookie ||
      repeatedEntries > seen.size + maxExtraRepeats ||
      yieldedEntries > maxEntries
    )
      throw new XdrError('the server lists a directory without coming to its end');
    position = { cookie: last.cookie, verifier: page.verifier };
  }
}

interface SeenNames {
  readonly size: number;
  readonly isFull: boolean;
  /** Whether the name was yielded before. If not, remembers it while there is room. */
  checkAndAdd(entry: EntryPlus): boolean;
}

function createSeenNames(): SeenNames {
  const names = new Set<string>();
  let length = 0;
  const isFull = (): boolean => names.size >= maxSeenNames || length >= maxSeenLength;
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

/** Uses READDIRPLUS, or READDIR if the server does not support it, with a size that the server accepts. */
function createPageReader(
  client: Pick<NfsClient, 'readdirplus' | 'readdir'>,
  directory: FileHandle,
  options: ListingOptions,
): { next(position: { readonly cookie: bigint; readonly verifier: bigint }): Promise<Page> } {
  let bytes = options.bytes ?? defaultPageBytes;
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
          else if (isNfsError(cause, 'TOOSMALL') && bytes < defaultPageBytes * 4) bytes *= 4;
          else if (isNfsError(cause, 'INVAL') && bytes > minPageBytes) bytes = minPageBytes;
          else throw cause;
        }
      }
    },
  };
}
