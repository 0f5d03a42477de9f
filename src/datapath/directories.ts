import type { DirentWriter, Operations } from '#wire/fuse/operations.ts';
import type { EntryPlus } from '#wire/nfs3/structures.ts';
import { inoOf, typeOf } from './attr.ts';
import { createPages, keyOfEntry, type Page, type Pages } from './directory-pages.ts';
import type { Entries } from './entries.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';

/** An open directory: one page and the kernel's position. At most one page is in memory. */
interface OpenDirectory {
  readonly id: number;
  readonly pages: Pages;
  page: Page | undefined;
  /** Index in the page of the next entry for the kernel. */
  nextIndex: number;
  /** The kernel's offset for that entry. */
  position: bigint;
  /** The directory's change count when it was read from the start; undefined: not read from the start. */
  readonly changes: number | undefined;
}

interface ReaddirReply {
  readonly list: DirentWriter;
  readonly plus: boolean;
  /** Journal place of the request. */
  readonly place: number;
}

export type DirectoryOperations = Pick<Operations, 'opendir' | 'readdir' | 'releasedir'>;

export function createDirectories(context: MountContext, entries: Entries): DirectoryOperations {
  const { attributes, names, server, releases } = context;
  const openDirectories = new Map<number, OpenDirectory>();
  // Random start, since predecessors have handed out numbers, too.
  let lastFh = Math.floor(Math.random() * 2 ** 48);

  /** The stream at the kernel's offset. The kernel may seek back, and after a crash the position is unknown. */
  function directoryAt(id: number, fh: number, position: bigint): OpenDirectory {
    const opened = openDirectories.get(fh);
    const known = opened?.id === id ? opened : undefined;
    if (known !== undefined && known.position === position && position !== 0n) return known;
    const pages =
      known === undefined || position === 0n
        ? createPages(context, id, { remembersNames: true, checkedAccess: access.list })
        : known.pages;
    const isWhole = position === 0n && attributes.lastSeen(id) !== undefined;
    const changes = isWhole ? names.changeCount(id) : undefined;
    const directory: OpenDirectory = { id, pages, page: undefined, nextIndex: 0, position, changes };
    openDirectories.set(fh, directory);
    return directory;
  }

  /** False: the reply is full. */
  function add(id: number, page: Page, entry: EntryPlus, reply: ReaddirReply): boolean {
    const key = keyOfEntry(entry);
    const isDots = key === '.' || key === '..';
    const known = { target: entry, at: page.at, eventNumber: page.eventNumber };
    if (!isDots) names.put(id, key, known, page.changes);
    const listedEntry = reply.plus && !isDots ? entries.listedEntry(id, key, known, reply.place) : undefined;
    const type = listedEntry?.attr?.mode ?? typeOf(entry.attributes ?? { type: 0 });
    const name = Buffer.from(key, 'latin1');
    const fits = reply.list.add({ ino: inoOf(entry.fileId), offset: entry.cookie, type, name, entry: listedEntry });
    // The entry did not fit, so the kernel does not learn of it.
    if (!fits && listedEntry !== undefined) entries.undoLookup(listedEntry.node, reply.place);
    return fits;
  }

  return {
    opendir: () => ({ fh: ++lastFh, flags: 0 }),
    releasedir: (_, fh) => {
      openDirectories.delete(fh);
    },
    readdir: async (id, { fh, offset, plus }, list, request) => {
      const pendingRelease = releases.waitForHiddenNames(server.node(id).handle, request);
      if (pendingRelease !== undefined) await pendingRelease;
      const directory = directoryAt(id, fh, offset);
      for (let added = 0; ; ) {
        const { page } = directory;
        for (; page !== undefined && directory.nextIndex < page.entries.length; added++) {
          const entry = page.entries[directory.nextIndex] as EntryPlus;
          if (!add(id, page, entry, { list, plus, place: request.slot })) return;
          directory.position = entry.cookie;
          directory.nextIndex++;
        }
        if (page?.isEnd === true && directory.changes !== undefined) names.markComplete(id, directory.changes);
        // Reply with the entries of this page before requesting the next page.
        if (added > 0 || page?.isEnd === true) return;
        directory.page = await directory.pages.pageAfter(directory.position, request);
        directory.nextIndex = 0;
      }
    },
  };
}
