import type { Request } from '#wire/fuse/operations.ts';
import type { Context } from './context.ts';
import { createPages, keyOfEntry, type Pages } from './directory-pages.ts';
import { access } from './identity.ts';

/**
 * A process that looks up one name after the other (`stat` of all files, a build, a backup) usually continues. Then
 * part of the directory is listed ahead, which brings hundreds of names with attributes for little more than the cost
 * of one lookup.
 */
export interface ReaddirAhead {
  /** A lookup had to ask the server. */
  recordMiss(directory: number, request: Request): void;
  /** A lookup was answered from the cache. */
  recordHit(directory: number): void;
  forget(directory: number): void;
}

interface DirectoryLookups {
  /** Start time of the observation. */
  readonly startedAt: number;
  misses: number;
  used: number;
  listed: number;
  /** Created when it is worth it. */
  listing: Listing | undefined;
  /** The listing is complete or failed. */
  isExhausted: boolean;
}

interface Listing {
  readonly pages: Pages;
  /** The directory's change count at the start; undefined: unknown. */
  readonly changes: number | undefined;
  position: bigint;
  isInFlight: boolean;
}

/** Misses within `withinMs` that justify a listing. */
const minMisses = 16;
/** The names of a listing are used for no longer than this. */
const withinMs = 1_000;
/** Names listed per miss: a process that wants a few of a million names must not load them all. */
const maxListedPerMiss = 32;
/** Names listed before any must have been used: servers list in any order. */
const trialNames = 2_048;
/** Beyond that, this part must have been used. */
const usedPart = 1 / 16;
/** Directories observed at once; a search through many more does not stay long in any. */
const maxDirectories = 64;

export function createReaddirAhead(context: Context): ReaddirAhead {
  const { names, attributes, clock, ttlMs } = context;
  /** In order of their start. */
  const directories = new Map<number, DirectoryLookups>();

  function of(id: number): DirectoryLookups {
    const now = clock.elapsed();
    const known = directories.get(id);
    if (known !== undefined && (known.listing?.isInFlight === true || now - known.startedAt < withinMs)) return known;
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
    listing?.isInFlight !== true &&
    misses >= minMisses &&
    listed <= misses * maxListedPerMiss &&
    (listed <= trialNames || used >= listed * usedPart);

  function begin(id: number): Listing {
    const changes = attributes.last(id) === undefined ? undefined : names.changes(id);
    // A caller may look names up without permission to list: then do not use a group that it may not be in.
    const pages = createPages(context, id, { remembers: false, checked: access.search });
    return { pages, changes, position: 0n, isInFlight: false };
  }

  async function list(id: number, ahead: DirectoryLookups, request: Request): Promise<void> {
    const listing = ahead.listing ?? begin(id);
    ahead.listing = listing;
    listing.isInFlight = true;
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
      // Any failure, such as a missing permission to list: the lookup itself reports errors.
      ahead.isExhausted = true;
    }
    listing.isInFlight = false;
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
