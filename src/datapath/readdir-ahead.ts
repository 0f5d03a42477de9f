import type { Request } from '#wire/fuse/operations.ts';
import type { Context } from './context.ts';
import { createPages, keyOfEntry, type Pages } from './directory-pages.ts';
import { access } from './identity.ts';

/**
 * Who looks up one name after the other (`stat` of all files, a build, a backup) mostly goes on so: a part of the directory is
 * then listed, which brings hundreds of names and their attributes for little more than one lookup takes.
 */
export interface ReaddirAhead {
  /** The server has to be asked for a name. */
  recordMiss(directory: number, request: Request): void;
  /** A name was known. */
  recordHit(directory: number): void;
  forget(directory: number): void;
}

interface DirectoryLookups {
  /** By the clock. */
  readonly startedAt: number;
  misses: number;
  used: number;
  listed: number;
  /** Made when it is worth it. */
  listing: Listing | undefined;
  /** Nothing more is to be had of it. */
  isExhausted: boolean;
}

interface Listing {
  readonly pages: Pages;
  /** What was known of the directory at the beginning; undefined: nothing. */
  readonly changes: number | undefined;
  position: bigint;
  isUnderWay: boolean;
}

/** So many within `withinMs`; fewer are not worth a listing. */
const minMisses = 16;
/** The names of a listing are relied on for no longer. */
const withinMs = 1_000;
/** For each name that was asked for, so many are listed at most: who wants a few out of a million shall not get them all. */
const maxListedPerMiss = 32;
/** So many are listed before any of them has to have been of use: servers list in any order. */
const trialNames = 2_048;
/** Beyond that, at least this part of them. */
const usedPart = 1 / 16;
/** Directories that are watched so at once; a search through many more does not stay in any for long. */
const maxDirectories = 64;

export function createReaddirAhead(context: Context): ReaddirAhead {
  const { names, attributes, clock, ttlMs } = context;
  /** Those begun last are last. */
  const directories = new Map<number, DirectoryLookups>();

  function of(id: number): DirectoryLookups {
    const now = clock.elapsed();
    const known = directories.get(id);
    if (known !== undefined && (known.listing?.isUnderWay === true || now - known.startedAt < withinMs)) return known;
    directories.delete(id);
    const [oldest] = directories.keys();
    if (oldest !== undefined && directories.size >= maxDirectories) directories.delete(oldest);
    const made: DirectoryLookups = {
      startedAt: now,
      misses: 0,
      used: 0,
      listed: 0,
      listing: undefined,
      isExhausted: false,
    };
    directories.set(id, made);
    return made;
  }

  const isWorthMore = ({ misses, used, listed, listing, isExhausted }: DirectoryLookups): boolean =>
    !isExhausted &&
    listing?.isUnderWay !== true &&
    misses >= minMisses &&
    listed <= misses * maxListedPerMiss &&
    (listed <= trialNames || used >= listed * usedPart);

  function begin(id: number): Listing {
    const changes = attributes.last(id) === undefined ? undefined : names.changes(id);
    // Whoever looks names up need not be allowed to list them: then he gets none by a group that he may not be in.
    const pages = createPages(context, id, { remembers: false, checked: access.search });
    return { pages, changes, position: 0n, isUnderWay: false };
  }

  async function list(id: number, ahead: DirectoryLookups, request: Request): Promise<void> {
    const listing = ahead.listing ?? begin(id);
    ahead.listing = listing;
    listing.isUnderWay = true;
    try {
      const page = await listing.pages.after(listing.position, request);
      for (const entry of page.entries) {
        const key = keyOfEntry(entry);
        const known = { meant: entry, at: page.at, since: page.since };
        if (key !== '.' && key !== '..' && names.get(id, key) === undefined) names.put(id, key, known, page.changes);
      }
      ahead.listed += page.entries.length;
      listing.position = page.entries.at(-1)?.cookie ?? listing.position;
      ahead.isExhausted = page.isEnd;
      if (page.isEnd && listing.changes !== undefined) names.complete(id, listing.changes);
    } catch {
      // Not allowed to list it, or whatever: whoever looks a name up is told by his own call.
      ahead.isExhausted = true;
    }
    listing.isUnderWay = false;
    if (ahead.isExhausted) ahead.listing = undefined;
  }

  return {
    recordMiss: (id, request) => {
      if (ttlMs === 0) return;
      const ahead = of(id);
      ahead.misses++;
      if (isWorthMore(ahead)) void list(id, ahead, request);
    },
    recordHit: (id) => {
      const ahead = directories.get(id);
      if (ahead !== undefined) ahead.used++;
    },
    forget: (id) => void directories.delete(id),
  };
}
