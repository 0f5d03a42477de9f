import type { Request } from '#wire/fuse/operations.ts';
import { isValidName } from '#wire/nfs3/names.ts';
import { isNfsError } from '#wire/nfs3/status.ts';
import { type EntryPlus, type FileHandle, nameOf } from '#wire/nfs3/structures.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { XdrError } from '#wire/xdr/reader.ts';
import type { Context } from './context.ts';

/** A page of a directory listing. */
export interface Page {
  readonly entries: readonly EntryPlus[];
  readonly isEnd: boolean;
  /** When it arrived, and the event and change counts when it was requested (see `AttributeCache` and `NameCache`). */
  readonly at: number;
  readonly since: number;
  readonly changes: number;
}

/** One pass over a directory. Positions are the server's cookies. */
export interface Pages {
  after(position: bigint, request: Request): Promise<Page>;
}

const pageBytes = 64 * 1024;
const maxPageBytes = 256 * 1024;
const minBytes = 4096;
/** Retries of errors that may come from an entry being removed. */
const maxVanished = 5;
/** Restarts after lost positions without a new entry, and pages without a new entry. */
const maxRestarts = 5;
const maxEmptyPages = 10_000;
/** Names remembered, so that a restarted listing returns nothing twice. */
const maxRemembered = 100_000;

export interface PagesOptions {
  readonly remembers: boolean;
  /** One of `access`: the right that the kernel has checked for the caller. */
  readonly checked: number;
}

/**
 * The server may reject a cookie. The listing then restarts and skips the names already returned, unless the caller
 * chose not to remember names, or more names were returned than are remembered.
 */
export function createPages(context: Context, id: number, { remembers, checked }: PagesOptions): Pages {
  const { nfs, server, attributes, names, clock } = context;
  const given = new Set<string>();
  let verifier = 0n;
  let bytes = pageBytes;
  let hasPlus = true;
  /** The server accepts only the minimum size. */
  let isSmall = false;
  let hasBegunAnew = false;
  const circle = createCircleCheck();

  const ask = (position: bigint, request: Request) => {
    const list = async (directory: FileHandle, options: CallOptions) => {
      const args = { directory, cookie: position, verifier: position === 0n ? 0n : verifier, bytes };
      if (hasPlus) return await nfs.readdirplus(args, options);
      const { entries, ...page } = await nfs.readdir(args, options);
      return { ...page, entries: entries.map((entry) => ({ ...entry, attributes: undefined, handle: undefined })) };
    };
    return server.callOn(request, id, list, checked);
  };

  /**
   * Lists with a size and procedure that the server supports. Undefined: it rejected the cookie. nfs-ganesha reports an
   * entry that vanishes as an error of the whole directory.
   */
  async function suited(position: bigint, request: Request) {
    for (let vanished = 0; ; ) {
      try {
        return await ask(position, request);
      } catch (cause) {
        if (isNfsError(cause, 'BAD_COOKIE') && position !== 0n) return undefined;
        if (isNfsError(cause, 'NOTSUPP') && hasPlus) hasPlus = false;
        else if (isNfsError(cause, 'TOOSMALL') && bytes < maxPageBytes && !isSmall) bytes *= 2;
        else if (isNfsError(cause, 'INVAL') && bytes > minBytes) [bytes, isSmall] = [minBytes, true];
        else if (!isNfsError(cause, 'NOENT', 'STALE') || ++vanished > maxVanished) throw cause;
      }
    }
  }

  const isWanted = (entry: EntryPlus): boolean => {
    const name = nameOf(entry);
    if (name !== '.' && name !== '..' && !isValidName(name)) return false;
    const key = keyOfEntry(entry);
    if (hasBegunAnew && given.has(key)) return false;
    if (remembers && given.size < maxRemembered) given.add(key);
    return true;
  };

  return {
    after: async (position, request) => {
      let from = position;
      for (let [anew, inVain] = [0, 0]; inVain < maxEmptyPages; inVain++) {
        const [since, changes] = [attributes.now(), names.changes(id)];
        const page = await suited(from, request);
        if (page === undefined) {
          const isKnown = remembers && given.size < maxRemembered;
          if (!isKnown || ++anew > maxRestarts) throw new XdrError('the server lost its place in a directory');
          hasBegunAnew = true;
          circle.beginAnew();
          from = 0n;
          continue;
        }
        verifier = page.verifier;
        circle.goOn(from, page.entries);
        const entries = page.entries.filter(isWanted);
        const last = page.entries.at(-1)?.cookie;
        if (entries.length > 0 || page.isEnd)
          return { entries, isEnd: page.isEnd, at: clock.elapsed(), since, changes };
        if (last === undefined || last === from) throw new XdrError('the server lists a directory endlessly');
        from = last;
      }
      throw new XdrError('the server lists nothing new');
    },
  };
}

interface CircleCheck {
  beginAnew(): void;
  /** Throws if a position repeats within one pass. */
  goOn(from: bigint, entries: readonly Pick<EntryPlus, 'cookie'>[]): void;
}

/**
 * Some servers list a directory forever (nfs-ganesha on tmpfs after a rename). One position is remembered, and replaced
 * after 1, 2, 4 … entries: a loop passes it eventually.
 */
function createCircleCheck(): CircleCheck {
  let remembered: bigint | undefined;
  let last: bigint | undefined;
  let left = 1;
  let passed = 1;
  const beginAnew = (): void => {
    [remembered, left, passed] = [undefined, 1, 1];
  };
  return {
    beginAnew,
    goOn: (from, entries) => {
      // The kernel may seek back.
      if (from !== last) beginAnew();
      for (const { cookie } of entries) {
        if (cookie === remembered) throw new XdrError('the server lists a directory in a loop');
        if (--left > 0) continue;
        passed *= 2;
        [remembered, left] = [cookie, passed];
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
