import type { Request } from '#wire/fuse/operations.ts';
import { createPages, keyOfEntry, type Pages } from './directory-pages.ts';
import { access } from './identity.ts';
import type { MountContext } from './mount-context.ts';

/**
 * A process that looks up one name after the other (`stat` of all files, a build, a backup) usually continues. So list
 * part of the directory ahead: one READDIRPLUS returns hundreds of names with attributes for little more than the cost
 * of one LOOKUP.
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
  hits: number;
  listed: number;
  /** Created after `minMisses` misses. */
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

/** Misses within `observationMs` that justify a listing. */
const minMisses = 16;
/** The names of a listing are used for no longer than this. */
const observationMs = 1_000;
/** Names listed per miss: a process that wants a few of a million names must not load them all. */
const maxListedPerMiss = 32;
/** Up to this many names, the hit ratio is not checked: servers list in an order unrelated to the lookups. */
const maxUnusedNames = 2_048;
/** Above `maxUnusedNames`, list on only if at least this fraction of the listed names was looked up. */
const minHitRatio = 1 / 16;
/** Maximum number of directories to observe. A search through more directories visits each only briefly. */
const maxDirectories = 64;

export function createReaddirAhead(context: MountContext): ReaddirAhead {
  const { names, attributes, clock, ttlMs } = context;
  /** Oldest first. */
  const directories = new Map<number, DirectoryLookups>();

  function lookupsIn(id: number): DirectoryLookups {
    const now = clock.elapsed();
    const known = directories.get(id);
    if (known !== undefined && (known.listing?.isInFlight === true || now - known.startedAt < observationMs))
      return known;
    directories.delete(id);
    const [oldest] = directories.keys();
    if (oldest !== undefined && directories.size >= maxDirectories) directories.delete(oldest);
    const made: DirectoryLookups = {
      startedAt: now,
      misses: 0,
      hits: 0,
      listed: 0,
      listing: undefined,
      isExhausted: false,
    };
    directories.set(id, made);
    return made;
  }

  const shouldListMore = ({ misses, hits: used, listed, listing, isExhausted }: DirectoryLookups): boolean =>
    !isExhausted &&
    listing?.isInFlight !== true &&
    misses >= minMisses &&
    listed <= misses * maxListedPerMiss &&
    (listed <= maxUnusedNames || used >= listed * minHitRatio);

  function startListing(id: number): Listing {
    const changes = attributes.lastSeen(id) === undefined ? undefined : names.changeCount(id);
    // The kernel has checked only search permission, so don't send a group that the caller may not be in.
    const pages = createPages(context, id, { remembersNames: false, checkedAccess: access.search });
    return { pages, changes, position: 0n, isInFlight: false };
  }

  async function listAhead(id: number, lookups: DirectoryLookups, request: Request): Promise<void> {
    const listing = lookups.listing ?? startListing(id);
    lookups.listing = listing;
    listing.isInFlight = true;
    try {
      const page = await listing.pages.pageAfter(listing.position, request);
      for (const entry of page.entries) {
        const key = keyOfEntry(entry);
        const known = { target: entry, at: page.at, eventNumber: page.eventNumber };
        if (key !== '.' && key !== '..' && names.get(id, key) === undefined) names.put(id, key, known, page.changes);
      }
      lookups.listed += page.entries.length;
      listing.position = page.entries.at(-1)?.cookie ?? listing.position;
      lookups.isExhausted = page.isEnd;
      if (page.isEnd && listing.changes !== undefined) names.markComplete(id, listing.changes);
    } catch {
      // Any failure, such as a missing permission to list: the lookup itself reports errors.
      lookups.isExhausted = true;
    }
    listing.isInFlight = false;
    if (lookups.isExhausted) lookups.listing = undefined;
  }

  return {
    recordMiss: (id, request) => {
      if (ttlMs === 0) return;
      const lookups = lookupsIn(id);
      lookups.misses++;
      if (shouldListMore(lookups)) void listAhead(id, lookups, request);
    },
    recordHit: (id) => {
      const lookups = directories.get(id);
      if (lookups !== undefined) lookups.hits++;
    },
    forget: (id) => void directories.delete(id),
  };
}
