import type { Request } from '#wire/fuse/operations.ts';
import type { Context } from './context.ts';
import { createPages, keyOfEntry, type Pages } from './directory-pages.ts';

/**
 * Who looks up one name after the other (`stat` of all files, a build, a backup) mostly goes on so: a part of the directory is
 * then listed, which brings hundreds of names and their attributes for little more than one lookup takes.
 */
export interface NamesAhead {
  /** The server has to be asked for a name. */
  missed(directory: number, request: Request): void;
  /** A name was known. */
  used(directory: number): void;
  forget(directory: number): void;
}

interface Ahead {
  /** By the clock. */
  readonly begun: number;
  readonly pages: Pages;
  /** What was known of the directory at the beginning. */
  readonly changes: number;
  misses: number;
  used: number;
  listed: number;
  position: bigint;
  isListing: boolean;
  /** Nothing more is to be had of it. */
  isOver: boolean;
}

/** So many within `withinMs`; fewer are not worth a listing. */
const enough = 16;
/** The names of a listing are relied on for no longer. */
const withinMs = 1_000;
/** For each name that was asked for, so many are listed at most: who wants a few out of a million shall not get them all. */
const atMost = 32;
/** So many are listed before any of them has to have been of use: servers list in any order. */
const onTrial = 2_048;
/** Beyond that, at least this part of them. */
const usedPart = 1 / 16;

export function createNamesAhead(context: Context): NamesAhead {
  const { names, attributes, clock, ttlMs } = context;
  const directories = new Map<number, Ahead>();

  function of(id: number): Ahead {
    const now = clock.elapsed();
    const known = directories.get(id);
    if (known !== undefined && (known.isListing || now - known.begun < withinMs)) return known;
    const made: Ahead = {
      ...{ begun: now, pages: createPages(context, id), changes: names.changes(id), misses: 0, used: 0, listed: 0 },
      ...{ position: 0n, isListing: false, isOver: false },
    };
    directories.set(id, made);
    return made;
  }

  const isWorthMore = ({ misses, used, listed }: Ahead): boolean =>
    misses >= enough && listed <= misses * atMost && (listed <= onTrial || used >= listed * usedPart);

  async function list(id: number, ahead: Ahead, request: Request): Promise<void> {
    ahead.isListing = true;
    try {
      const page = await ahead.pages.after(ahead.position, request);
      for (const entry of page.entries) {
        const key = keyOfEntry(entry);
        const known = { meant: entry, at: page.at, since: page.since };
        if (key !== '.' && key !== '..' && names.get(id, key) === undefined) names.put(id, key, known, page.changes);
      }
      ahead.listed += page.entries.length;
      ahead.position = page.entries.at(-1)?.cookie ?? ahead.position;
      ahead.isOver = page.isEnd;
      if (page.isEnd && attributes.last(id) !== undefined) names.complete(id, ahead.changes);
    } catch {
      // Not allowed to list it, or whatever: whoever looks a name up is told by his own call.
      ahead.isOver = true;
    }
    ahead.isListing = false;
  }

  return {
    missed: (id, request) => {
      if (ttlMs === 0) return;
      const ahead = of(id);
      ahead.misses++;
      if (!ahead.isListing && !ahead.isOver && isWorthMore(ahead)) void list(id, ahead, request);
    },
    used: (id) => {
      const ahead = directories.get(id);
      if (ahead !== undefined) ahead.used++;
    },
    forget: (id) => void directories.delete(id),
  };
}
