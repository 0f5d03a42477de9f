import type { Request } from '#wire/fuse/operations.ts';
import { isValidName } from '#wire/nfs3/names.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type EntryPlus, type FileHandle, nameOf } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import type { MountContext } from './mount-context.ts';

/** A page of a directory listing. */
export interface Page {
  readonly entries: readonly EntryPlus[];
  readonly isEnd: boolean;
  /** When it arrived, and the event and change counts when it was requested (see `AttributeCache` and `NameCache`). */
  readonly at: number;
  readonly eventNumber: number;
  readonly changes: number;
}

/** One pass over a directory. Positions are the server's cookies. */
export interface Pages {
  pageAfter(position: bigint, request: Request): Promise<Page>;
}

const initialPageBytes = 64 * 1024;
const maxPageBytes = 256 * 1024;
const minPageBytes = 4096;
/** Retries of errors that may come from an entry being removed. */
const maxVanishedRetries = 5;
/** Maximum number of restarts, and of pages, without a new entry. */
const maxRestarts = 5;
const maxEmptyPages = 10_000;
/** Names remembered, so that a restarted listing returns nothing twice. */
const maxRememberedNames = 100_000;

export interface PagesOptions {
  readonly remembersNames: boolean;
  /** One of `access`: the right that the kernel has checked for the caller. */
  readonly checkedAccess: number;
}

/**
 * The server may reject a cookie. The listing then restarts and skips the names already returned, unless the caller
 * chose not to remember names, or more names were returned than are remembered.
 */
export function createPages(context: MountContext, id: number, { remembersNames, checkedAccess }: PagesOptions): Pages {
  const { nfs, server, attributes, names, clock } = context;
  const returnedNames = new Set<string>();
  let verifier = 0n;
  let bytes = initialPageBytes;
  let supportsPlus = true;
  /** The server accepts only the minimum size. */
  let isSmall = false;
  let hasRestarted = false;
  const loopCheck = createLoopCheck();

  const listOnce = (position: bigint, request: Request) => {
    const list = async (directory: FileHandle, options: CallOptions) => {
      const args = { directory, cookie: position, verifier: position === 0n ? 0n : verifier, bytes };
      if (supportsPlus) return await nfs.readdirplus(args, options);
      const { entries, ...page } = await nfs.readdir(args, options);
      return { ...page, entries: entries.map((entry) => ({ ...entry, attributes: undefined, handle: undefined })) };
    };
    return server.callOn(request, id, list, checkedAccess);
  };

  /**
   * Lists with a size and procedure that the server supports. Undefined: it rejected the cookie. nfs-ganesha reports an
   * entry that vanishes as an error of the whole directory.
   */
  async function listWithFallbacks(position: bigint, request: Request) {
    for (let vanished = 0; ; ) {
      try {
        return await listOnce(position, request);
      } catch (cause) {
        if (isNfsError(cause, 'BAD_COOKIE') && position !== 0n) return undefined;
        if (isNfsError(cause, 'NOTSUPP') && supportsPlus) supportsPlus = false;
        else if (isNfsError(cause, 'TOOSMALL') && bytes < maxPageBytes && !isSmall) bytes *= 2;
        else if (isNfsError(cause, 'INVAL') && bytes > minPageBytes) [bytes, isSmall] = [minPageBytes, true];
        else if (!isNfsError(cause, 'NOENT', 'STALE') || ++vanished > maxVanishedRetries) throw cause;
      }
    }
  }

  const isWanted = (entry: EntryPlus): boolean => {
    const name = nameOf(entry);
    if (name !== '.' && name !== '..' && !isValidName(name)) return false;
    const key = keyOfEntry(entry);
    if (hasRestarted && returnedNames.has(key)) return false;
    if (remembersNames && returnedNames.size < maxRememberedNames) returnedNames.add(key);
    return true;
  };

  return {
    pageAfter: async (position, request) => {
      let from = position;
      for (let [restarts, emptyPages] = [0, 0]; emptyPages < maxEmptyPages; emptyPages++) {
        const [eventNumber, changes] = [attributes.eventNumber(), names.changeCount(id)];
        const page = await listWithFallbacks(from, request);
        if (page === undefined) {
          const isKnown = remembersNames && returnedNames.size < maxRememberedNames;
          if (!isKnown || ++restarts > maxRestarts) throw new XdrError('the server lost its place in a directory');
          hasRestarted = true;
          loopCheck.restart();
          from = 0n;
          continue;
        }
        verifier = page.verifier;
        loopCheck.advance(from, page.entries);
        const entries = page.entries.filter(isWanted);
        const last = page.entries.at(-1)?.cookie;
        if (entries.length > 0 || page.isEnd)
          return { entries, isEnd: page.isEnd, at: clock.elapsed(), eventNumber, changes };
        if (last === undefined || last === from) throw new XdrError('the server lists a directory endlessly');
        from = last;
      }
      throw new XdrError('the server lists nothing new');
    },
  };
}

interface LoopCheck {
  restart(): void;
  /** Throws if a position repeats within one pass. */
  advance(from: bigint, entries: readonly Pick<EntryPlus, 'cookie'>[]): void;
}

/**
 * Some servers list a directory forever (nfs-ganesha on tmpfs after a rename). One position is remembered, and replaced
 * after 1, 2, 4 … entries: a loop passes it eventually.
 */
function createLoopCheck(): LoopCheck {
  let rememberedCookie: bigint | undefined;
  let last: bigint | undefined;
  let untilNext = 1;
  let interval = 1;
  const restart = (): void => {
    [rememberedCookie, untilNext, interval] = [undefined, 1, 1];
  };
  return {
    restart,
    advance: (from, entries) => {
      // The kernel may seek back.
      if (from !== last) restart();
      for (const { cookie } of entries) {
        if (cookie === rememberedCookie) throw new XdrError('the server lists a directory in a loop');
        if (--untilNext > 0) continue;
        interval *= 2;
        [rememberedCookie, untilNext] = [cookie, interval];
      }
      last = entries.at(-1)?.cookie ?? from;
    },
  };
}

/** One character per byte, the key of the name cache. */
export function keyOfEntry({ name, bytes }: Pick<EntryPlus, 'name' | 'bytes'>): string {
  if (bytes !== undefined) return Buffer.from(bytes).toString('latin1');
  for (let i = 0; i < name.length; i++) if (name.charCodeAt(i) > 127) return Buffer.from(name).toString('latin1');
  return name;
}
