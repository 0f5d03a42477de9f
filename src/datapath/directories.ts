import type { DirentWriter, Operations } from '#wire/fuse/operations.ts';
import type { EntryPlus } from '#wire/nfs3/structures.ts';
import { inoOf, typeOf } from './attr.ts';
import type { Context } from './context.ts';
import { createPages, keyOfEntry, type Page, type Pages } from './directory-pages.ts';
import type { Entries } from './entries.ts';
import { access } from './identity.ts';

/** An open directory: one page and the kernel's position. At most one page is in memory. */
interface Stream {
  readonly id: number;
  readonly pages: Pages;
  page: Page | undefined;
  /** Index in the page of the next entry for the kernel. */
  next: number;
  /** The kernel's offset for that entry. */
  position: bigint;
  /** The directory's change count when it was read from the start; undefined: not read from the start. */
  readonly changes: number | undefined;
}

interface Into {
  readonly list: DirentWriter;
  readonly plus: boolean;
  /** Journal place of the request. */
  readonly place: number;
}

export type DirectoryOperations = Pick<Operations, 'opendir' | 'readdir' | 'releasedir'>;

export function createDirectories(context: Context, entries: Entries): DirectoryOperations {
  const { attributes, names, server, releases } = context;
  const streams = new Map<number, Stream>();
  // Predecessors have handed out numbers too.
  let lastFh = Math.floor(Math.random() * 2 ** 48);

  /** The stream at the kernel's offset. The kernel may seek back, and after a crash the position is unknown. */
  function streamAt(id: number, fh: number, position: bigint): Stream {
    const opened = streams.get(fh);
    const known = opened?.id === id ? opened : undefined;
    if (known !== undefined && known.position === position && position !== 0n) return known;
    const pages =
      known === undefined || position === 0n
        ? createPages(context, id, { remembers: true, checked: access.list })
        : known.pages;
    const isWhole = position === 0n && attributes.last(id) !== undefined;
    const changes = isWhole ? names.changes(id) : undefined;
    const stream: Stream = { id, pages, page: undefined, next: 0, position, changes };
    streams.set(fh, stream);
    return stream;
  }

  /** False: the reply is full. */
  function add(id: number, page: Page, entry: EntryPlus, into: Into): boolean {
    const key = keyOfEntry(entry);
    const isDots = key === '.' || key === '..';
    const known = { meant: entry, at: page.at, since: page.since };
    if (!isDots) names.put(id, key, known, page.changes);
    const full = into.plus && !isDots ? entries.listed(id, key, known, into.place) : undefined;
    const type = full?.attr?.mode ?? typeOf(entry.attributes ?? { type: 0 });
    const name = Buffer.from(key, 'latin1');
    const isTaken = into.list.add({ ino: inoOf(entry.fileId), offset: entry.cookie, type, name, entry: full });
    // The entry did not fit, so the kernel does not learn of it.
    if (!isTaken && full !== undefined) entries.undoLookup(full.node, into.place);
    return isTaken;
  }

  return {
    opendir: () => ({ fh: ++lastFh, flags: 0 }),
    releasedir: (_, fh) => {
      streams.delete(fh);
    },
    readdir: async (id, { fh, offset, plus }, list, request) => {
      const leaving = releases.waitForHidden(server.node(id).handle, request);
      if (leaving !== undefined) await leaving;
      const stream = streamAt(id, fh, offset);
      for (let given = 0; ; ) {
        const { page } = stream;
        for (; page !== undefined && stream.next < page.entries.length; given++) {
          const entry = page.entries[stream.next] as EntryPlus;
          if (!add(id, page, entry, { list, plus, place: request.slot })) return;
          stream.position = entry.cookie;
          stream.next++;
        }
        if (page?.isEnd === true && stream.changes !== undefined) names.complete(id, stream.changes);
        // Reply with what is there before asking the server for more.
        if (given > 0 || page?.isEnd === true) return;
        stream.page = await stream.pages.after(stream.position, request);
        stream.next = 0;
      }
    },
  };
}
