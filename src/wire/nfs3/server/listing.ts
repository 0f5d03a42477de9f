import { type BigIntStats, type Dir, opendirSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { ExportedTree } from './exported-tree.ts';
import type { ByteString } from './names.ts';
import type { Node } from './nodes.ts';

/** Cookies 1 and 2 are `.` and `..`; those of other names start here. */
export const firstCookie = 3;

/** A part of a directory's names, sorted by cookie. */
export interface Listing {
  /** The directory's times when it was read. */
  readonly mtime: bigint;
  readonly ctime: bigint;
  /** The directory was read so long after its last change that any later change must alter its times. */
  readonly isSettled: boolean;
  /** The listing has every name after this cookie, up to its last name. */
  readonly after: number;
  readonly cookies: Float64Array;
  readonly names: readonly ByteString[];
  /** No names follow. */
  readonly isEnd: boolean;
}

/**
 * Listings of directories. The cookie of a name is a keyed hash of the name, and names are listed in the order of their cookies.
 * So a listing can continue after any changes of the directory, in an older or newer copy of it, and after a restart. Memory is
 * bounded, however large a directory is.
 */
export interface Listings {
  /** Returns the names after the cookie. A listing from the beginning shows the current directory. */
  namesAfter(directory: Node, cookie: number, stats: BigIntStats): Listing | Promise<Listing>;
  /** Whether the listing is current; false if that is unknown. */
  isCurrent(listing: Listing, stats: BigIntStats): boolean;
  /** The index of the first name after the cookie. */
  indexAfter(listing: Listing, cookie: number): number;
}

export interface ListingLimits {
  /** The limit on names of one directory in memory. */
  readonly maxNames: number;
  /** The limit on names in all cached listings. */
  readonly maxCachedNames: number;
}

/** The number of names to read before other calls run. */
const namesPerTurn = 4096;
/** File systems record times in kernel ticks. */
const clockTickMs = 50;

export function createListings(
  tree: ExportedTree,
  secret: CookieSecret,
  nowMs: () => number,
  limits: ListingLimits,
): Listings {
  const cached = new Map<Node, Listing>();
  let total = 0;
  let lastRead: Promise<unknown> = Promise.resolve();
  let waiting = 0;

  function keep(directory: Node, listing: Listing): Listing {
    forget(directory);
    cached.set(directory, listing);
    total += listing.names.length;
    for (const [oldest] of cached) {
      if (total <= limits.maxCachedNames || oldest === directory) break;
      forget(oldest);
    }
    return listing;
  }

  function forget(directory: Node): void {
    total -= cached.get(directory)?.names.length ?? 0;
    cached.delete(directory);
  }

  function findUsable(directory: Node, cookie: number, stats: BigIntStats): Listing | undefined {
    const listing = cached.get(directory);
    if (listing === undefined || cookie < listing.after) return undefined;
    if (cookie < firstCookie && !isCurrent(listing, stats)) return undefined;
    const last = listing.cookies.at(-1) ?? 0;
    if (cookie >= last && !listing.isEnd) return undefined;
    cached.delete(directory);
    cached.set(directory, listing);
    return listing;
  }

  function start(directory: Node, cookie: number): DirectoryRead {
    const { prefix } = tree.openDirectory(directory);
    // A large directory is read in parts, each from the beginning, since the kernel does not sort by cookie.
    return createDirectoryRead(
      opendirSync(prefix, { encoding: 'latin1', bufferSize: 512 }),
      cookie,
      secret,
      limits.maxNames,
    );
  }

  async function readToEnd(read: DirectoryRead): Promise<DirectoryRead> {
    while (!read.readMore()) await nextTurn();
    return read;
  }

  function enqueue(work: () => Promise<Listing>): Promise<Listing> {
    waiting++;
    const done = lastRead.then(work).finally(() => {
      waiting--;
    });
    lastRead = done.catch(() => undefined);
    return done;
  }

  return {
    namesAfter: (directory, cookie, stats) => {
      const found = findUsable(directory, cookie, stats);
      if (found !== undefined) return found;
      const from = cookie < firstCookie ? 0 : cookie;
      const finish = (done: DirectoryRead): Listing => {
        const isSettled = nowMs() - Number(stats.ctimeNs / 1_000_000n) > clockTickMs;
        return keep(directory, { ...done.listing(), mtime: stats.mtimeNs, ctime: stats.ctimeNs, isSettled });
      };
      if (waiting === 0) {
        const first = start(directory, from);
        if (first.readMore()) return finish(first);
        return enqueue(async () => finish(await readToEnd(first)));
      }
      // Only one read at a time, since a read holds many names in memory.
      return enqueue(async () => finish(await readToEnd(start(directory, from))));
    },
    isCurrent,
    indexAfter: ({ cookies }, cookie) => {
      let [low, high] = [0, cookies.length];
      while (low < high) {
        const middle = (low + high) >>> 1;
        if ((cookies[middle] as number) > cookie) high = middle;
        else low = middle + 1;
      }
      return low;
    },
  };
}

const isCurrent = ({ mtime, ctime, isSettled }: Listing, stats: BigIntStats): boolean =>
  isSettled && mtime === stats.mtimeNs && ctime === stats.ctimeNs;

interface DirectoryRead {
  /** Reads more names. Returns true when all are read. */
  readMore(): boolean;
  listing(): Pick<Listing, 'after' | 'cookies' | 'names' | 'isEnd'>;
}

function createDirectoryRead(names: Dir, after: number, secret: CookieSecret, max: number): DirectoryRead {
  let found = new Map<number, ByteString>();
  let isPartial = false;

  function add(name: ByteString): void {
    let cookie = cookieOf(name, secret);
    if (cookie <= after) return;
    while (found.has(cookie)) cookie++;
    found.set(cookie, name);
  }

  /** Keeps only the first `max` names. */
  function keepFirst(): void {
    const cookies = sortedCookies(found).subarray(0, max);
    found = new Map(Array.from(cookies, (cookie) => [cookie, found.get(cookie) as ByteString]));
    isPartial = true;
  }

  function readSome(): boolean {
    for (let i = 0; i < namesPerTurn; i++) {
      const entry = names.readSync();
      if (entry === null) return true;
      add(entry.name);
    }
    if (found.size >= 2 * max) keepFirst();
    return false;
  }

  return {
    readMore: () => {
      let isDone = true;
      try {
        isDone = readSome();
        return isDone;
      } finally {
        // Close it also after an error, since the caller does not try again.
        if (isDone) names.closeSync();
      }
    },
    listing: () => {
      if (found.size > max) keepFirst();
      const cookies = sortedCookies(found);
      return { after, cookies, names: Array.from(cookies, (cookie) => found.get(cookie) ?? ''), isEnd: !isPartial };
    },
  };
}

const sortedCookies = (found: ReadonlyMap<number, ByteString>): Float64Array => Float64Array.from(found.keys()).sort();

/** Two secret odd numbers, so that a client cannot create many names whose cookies collide. */
export type CookieSecret = readonly [number, number];

export const cookieSecret = (bytes: Buffer): CookieSecret => [bytes.readUInt32BE(0) | 1, bytes.readUInt32BE(4) | 1];

/** A hash of 53 bits: two sums over the bytes, mixed at the end like in MurmurHash3. */
export function cookieOf(name: ByteString, [one, other]: CookieSecret): number {
  let a = one ^ name.length;
  let b = other;
  for (let i = 0; i < name.length; i++) {
    const byte = name.charCodeAt(i);
    a = Math.imul(a ^ byte, one);
    b = Math.imul(b, other) + byte;
  }
  a = Math.imul(a ^ (a >>> 16), 0x85eb_ca6b) ^ Math.imul(b ^ (b >>> 13), 0xc2b2_ae35);
  b = Math.imul(b ^ (b >>> 16), 0x85eb_ca6b) ^ Math.imul(a ^ (a >>> 13), 0xc2b2_ae35);
  return Math.max(firstCookie, (b & 0x1f_ffff) * 0x1_0000_0000 + (a >>> 0));
}
