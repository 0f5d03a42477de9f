import type { BigIntStats } from 'node:fs';
import type { Reply } from '../../rpc/server.ts';
import type { XdrReader } from '../../xdr/reader.ts';
import { XdrWriter } from '../../xdr/writer.ts';
import { attributesBytes, writeAttributes, writePostAttributes } from '../structures.ts';
import { hasPermission, permission, requirePermission } from './access.ts';
import { type Export, readNode } from './export.ts';
import { firstCookie, type Listing } from './listing.ts';
import type { ByteString } from './names.ts';
import type { Node } from './nodes.ts';
import type { ProcedureDefinition, ProcedureHandler } from './procedure.ts';
import type { Page } from './readdir-cache.ts';
import { refuse } from './refusal.ts';

/** Building a larger reply would delay other clients. */
const maxReplyBytes = 128 * 1024;
/** The status, the directory's attributes, the verifier, and the two words at the end. */
const fixedBytes = 4 + 4 + attributesBytes + 8 + 8;

const paddedLength = (length: number): number => (length + 3) & ~3;
/** Entry follows, file id, name, cookie. */
const entryLength = (name: ByteString): number => 4 + 8 + 4 + paddedLength(name.length) + 8;

/** The size limits of one reply. */
interface ReplyLimits {
  readonly total: number;
  /** dircount of READDIRPLUS: the limit on file ids, names and cookies. */
  readonly names: number;
}

interface ReaddirArgs {
  readonly directory: Node;
  readonly cookie: number;
  readonly limits: ReplyLimits;
  readonly withAttributes: boolean;
}

function readReaddirArgs(exported: Export, reader: XdrReader, withAttributes: boolean): ReaddirArgs {
  const directory = readNode(exported, reader);
  const cookie = reader.u64();
  const verifier = reader.u64();
  const first = reader.u32();
  const total = Math.min(withAttributes ? reader.u32() : first, maxReplyBytes) - fixedBytes;
  if (cookie > BigInt(Number.MAX_SAFE_INTEGER)) refuse('BAD_COOKIE');
  // Clients that do not keep the verifier send 0.
  if (cookie !== 0n && verifier !== 0n && verifier !== exported.cookieVerifier) refuse('BAD_COOKIE');
  return {
    directory,
    cookie: Number(cookie),
    limits: { total, names: withAttributes ? first : total },
    withAttributes,
  };
}

/** Everything that a reply depends on: the arguments, the directory's state, and whether the caller may search it. */
interface ReaddirCall extends ReaddirArgs {
  readonly stats: BigIntStats;
  /** The caller may search the directory, so it may see its entries' attributes. */
  readonly showsAttributes: boolean;
  /** Reports only the file id of the parent directory. */
  readonly isConfined: boolean;
}

/** A cache key of all fields except the directory. */
const keyOf = ({ cookie, limits, withAttributes, showsAttributes, isConfined }: ReaddirCall): string =>
  `${cookie} ${limits.total} ${limits.names} ${withAttributes} ${showsAttributes} ${isConfined}`;

const handleReaddir =
  (withAttributes: boolean): ProcedureHandler =>
  (exported, reader, who) => {
    const args = readReaddirArgs(exported, reader, withAttributes);
    const { directory, cookie } = args;
    const stats = exported.tree.statDirectory(directory);
    requirePermission(stats, who, permission.read);
    const { isConfined } = exported;
    const call = {
      ...args,
      stats,
      isConfined,
      showsAttributes: withAttributes && hasPermission(stats, who, permission.execute),
    };
    const known = exported.readdirCache.find(directory, keyOf(call), stats);
    if (known !== undefined) return reply(exported, call, known);
    const found = exported.listings.namesAfter(directory, cookie, stats);
    const first = found instanceof Promise ? undefined : pageOf(exported, call, found);
    return first === undefined ? replyLater(exported, call, found) : reply(exported, call, first);
  };

async function replyLater(exported: Export, call: ReaddirCall, first: Listing | Promise<Listing>): Promise<Reply> {
  let found = await first;
  const { directory, stats } = call;
  for (let { cookie } = call; ; found = await exported.listings.namesAfter(directory, cookie, stats)) {
    exported.tree.descriptors.startTurn();
    const page = pageOf(exported, call, found);
    if (page !== undefined) return reply(exported, call, page);
    cookie = found.cookies.at(-1) as number;
  }
}

function reply({ toAttributes, cookieVerifier }: Export, { stats }: ReaddirCall, { bytes }: Page): Reply {
  const directoryAttributes = toAttributes(stats);
  return (writer) => {
    writer.u32(0);
    writePostAttributes(writer, directoryAttributes);
    writer.u64(cookieVerifier);
    return bytes;
  };
}

/** Undefined: this part of the listing has no more entries, and another part follows. Only the last reply may be empty. */
function pageOf(exported: Export, call: ReaddirCall, found: Listing): Page | undefined {
  const { directory, cookie, showsAttributes, isConfined, stats } = call;
  const entries = createEntries(exported, call);
  let isFull = false;
  if (cookie < 1) isFull = !entries.add('.', 1, exported.tree.stat(directory), directory);
  const parent = directory.parent ?? directory;
  if (cookie < 2 && !isFull)
    isFull = !entries.add('..', 2, exported.tree.stat(parent), isConfined ? undefined : parent);
  const { names, cookies } = found;
  const from = cookie < firstCookie ? 0 : exported.listings.indexAfter(found, cookie);
  exported.tree.withLookup(directory, (lookup) => {
    for (let i = from; i < names.length && !isFull; i++) {
      const name = names[i] as ByteString;
      const entryStats = lookup(name);
      // Skip an entry that was removed since the directory was read, or that is on another file system.
      if (entryStats === undefined) continue;
      const node = showsAttributes ? exported.tree.nodeFor(directory, name, entryStats) : undefined;
      isFull = !entries.add(name, cookies[i] as number, entryStats, node);
    }
  });
  if (isFull && entries.count === 0) refuse('TOOSMALL');
  const isEnd = found.isEnd && !isFull;
  if (entries.count === 0 && !isEnd) return undefined;
  const page = entries.end(isEnd);
  if (exported.listings.isCurrent(found, stats)) exported.readdirCache.keep(directory, keyOf(call), stats, page);
  return page;
}

interface PageEntries {
  readonly count: number;
  /** Returns false if the entry does not fit. */
  add(name: ByteString, cookie: number, stats: BigIntStats, node: Node | undefined): boolean;
  end(isEnd: boolean): Page;
}

/** The buffer in which pages are encoded, one at a time. */
const scratch = new XdrWriter(maxReplyBytes);

function createEntries(
  { toAttributes, nodes }: Export,
  { limits, withAttributes, showsAttributes }: ReaddirCall,
): PageEntries {
  const nodesWithAttributes: Node[] = [];
  let { total, names } = limits;
  let count = 0;
  scratch.offset = 0;
  return {
    get count() {
      return count;
    },
    add: (name, cookie, stats, node) => {
      const handle = showsAttributes && node !== undefined ? nodes.handleOf(node) : undefined;
      const plain = entryLength(name);
      const extra = handle === undefined ? 8 : 8 + attributesBytes + 4 + paddedLength(handle.length);
      total -= withAttributes ? plain + extra : plain;
      names -= plain;
      if (total < 0 || names < 0) return false;
      count++;
      scratch.bool(true).u64(stats.ino).latin1(name).size(cookie);
      if (handle !== undefined) {
        scratch.bool(true);
        writeAttributes(scratch, toAttributes(stats));
        scratch.bool(true).latin1(handle);
        nodesWithAttributes.push(node as Node);
      } else if (withAttributes) scratch.bool(false).bool(false);
      return true;
    },
    end: (isEnd) => {
      const { written } = scratch.bool(false).bool(isEnd);
      const bytes = Buffer.allocUnsafeSlow(written.length);
      written.copy(bytes);
      return { bytes, nodes: nodesWithAttributes };
    },
  };
}

export const listingProcedures: readonly ProcedureDefinition[] = [
  { number: 16, name: 'READDIR', failureWords: 1, handle: handleReaddir(false) },
  { number: 17, name: 'READDIRPLUS', failureWords: 1, handle: handleReaddir(true) },
];
