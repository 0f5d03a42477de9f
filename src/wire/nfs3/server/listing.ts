import { type BigIntStats, type Dir, opendirSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { ExportedTree } from './exported-tree.ts';
import type { ByteString } from './names.ts';
import type { Node } from './nodes.ts';

/** 1 and 2 are `.` and `..`; those of names begin here. */
export const firstCookie = 3;

/** A part of a directory's names in the order of their cookies. */
export interface Listing {
  /** The directory's own times when it was read. */
  readonly mtime: bigint;
  readonly ctime: bigint;
  /** Taken long enough after the last change that any later one shows in the times. */
  readonly isSettled: boolean;
  /** Every name after this cookie, up to the last one here, is here. */
  readonly after: number;
  readonly cookies: Float64Array;
  readonly names: readonly ByteString[];
  /** Nothing comes after. */
  readonly isEnd: boolean;
}

/**
 * Directories as they were read. A name's cookie is made from the name itself, by a secret; names are listed in its order.
 * So a listing goes on where it was, whatever was added or removed in between, in a copy that is newer or older, and also
 * after a restart. Only so many names are held in memory, of however large a directory.
 */
export interface Listings {
  /** What comes after the cookie. From the beginning: as the directory is now. */
  after(directory: Node, cookie: number, stats: BigIntStats): Listing | Promise<Listing>;
  /** Whether it shows the directory as it is now; false where that cannot be told. */
  isCurrent(listing: Listing, stats: BigIntStats): boolean;
  /** The first place after the cookie. */
  indexAfter(listing: Listing, cookie: number): number;
}

export interface ListingLimits {
  /** Of one directory, at once. */
  readonly maxNames: number;
  /** Of all that are kept. */
  readonly maxKept: number;
}

/** Others are served in between. */
const namesPerTurn = 4096;
/** File systems note times in steps of a tick. */
const tickMs = 50;

export function createListings(
  tree: ExportedTree,
  secret: CookieSecret,
  now: () => number,
  limits: ListingLimits,
): Listings {
  const kept = new Map<Node, Listing>();
  let total = 0;
  let reading: Promise<unknown> = Promise.resolve();
  let waiting = 0;

  function keep(directory: Node, listing: Listing): Listing {
    forget(directory);
    kept.set(directory, listing);
    total += listing.names.length;
    for (const [oldest] of kept) {
      if (total <= limits.maxKept || oldest === directory) break;
      forget(oldest);
    }
    return listing;
  }

  function forget(directory: Node): void {
    total -= kept.get(directory)?.names.length ?? 0;
    kept.delete(directory);
  }

  function usable(directory: Node, cookie: number, stats: BigIntStats): Listing | undefined {
    const listing = kept.get(directory);
    if (listing === undefined || cookie < listing.after) return undefined;
    if (cookie < firstCookie && !isCurrent(listing, stats)) return undefined;
    const last = listing.cookies.at(-1) ?? 0;
    if (cookie >= last && !listing.isEnd) return undefined;
    kept.delete(directory);
    kept.set(directory, listing);
    return listing;
  }

  function start(directory: Node, cookie: number): DirectoryRead {
    const { prefix } = tree.directory(directory);
    // Of large directories the names are read in parts, each time from the beginning: the system has no order of ours.
    return createDirectoryRead(
      opendirSync(prefix, { encoding: 'latin1', bufferSize: 512 }),
      cookie,
      secret,
      limits.maxNames,
    );
  }

  async function readOn(begun: DirectoryRead): Promise<DirectoryRead> {
    while (!begun.more()) await nextTurn();
    return begun;
  }

  function enqueue(work: () => Promise<Listing>): Promise<Listing> {
    waiting++;
    const done = reading.then(work).finally(() => {
      waiting--;
    });
    reading = done.catch(() => undefined);
    return done;
  }

  return {
    after: (directory, cookie, stats) => {
      const found = usable(directory, cookie, stats);
      if (found !== undefined) return found;
      const from = cookie < firstCookie ? 0 : cookie;
      const finish = (done: DirectoryRead): Listing => {
        const isSettled = now() - Number(stats.ctimeNs / 1_000_000n) > tickMs;
        return keep(directory, { ...done.listing(), mtime: stats.mtimeNs, ctime: stats.ctimeNs, isSettled });
      };
      if (waiting === 0) {
        const first = start(directory, from);
        if (first.more()) return finish(first);
        return enqueue(async () => finish(await readOn(first)));
      }
      // One at a time: a reading holds many names.
      return enqueue(async () => finish(await readOn(start(directory, from))));
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
  /** Reads some more. True: all is read. */
  more(): boolean;
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

  /** Only the first `max` are held. */
  function keepFirst(): void {
    const cookies = sorted(found).subarray(0, max);
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
    more: () => {
      let isDone = true;
      try {
        isDone = readSome();
        return isDone;
      } finally {
        // Also when it throws: then it is not asked again.
        if (isDone) names.closeSync();
      }
    },
    listing: () => {
      if (found.size > max) keepFirst();
      const cookies = sorted(found);
      return { after, cookies, names: Array.from(cookies, (cookie) => found.get(cookie) ?? ''), isEnd: !isPartial };
    },
  };
}

const sorted = (found: ReadonlyMap<number, ByteString>): Float64Array => Float64Array.from(found.keys()).sort();

/** Odd numbers that nobody else knows: so nobody can make many names that meet. */
export type CookieSecret = readonly [number, number];

export const cookieSecret = (bytes: Buffer): CookieSecret => [bytes.readUInt32BE(0) | 1, bytes.readUInt32BE(4) | 1];

/** 53 bits: two sums over the bytes, mixed at the end as in MurmurHash3. */
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
