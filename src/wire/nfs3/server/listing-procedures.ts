import type { BigIntStats } from 'node:fs';
import type { Reply } from '../../rpc/server.ts';
import type { XdrReader } from '../../xdr/reader.ts';
import type { XdrWriter } from '../../xdr/writer.ts';
import { type Attributes, writePostAttributes, writePostHandle } from '../structures.ts';
import { allows, check, may } from './access.ts';
import { type Export, nodeOf } from './export.ts';
import type { Who } from './identities.ts';
import { firstCookie, type Listing } from './listing.ts';
import { type ByteString, toPath } from './names.ts';
import type { Node } from './nodes.ts';
import { type Definition, ok, type Run } from './procedure.ts';
import { refuse } from './refusal.ts';

/** A larger answer would keep others waiting while it is made. */
const maxReply = 128 * 1024;
const attributesLength = 84;
/** Status, the directory's attributes, the verifier, and the two words at the end. */
const frame = 4 + 4 + attributesLength + 8 + 8;

interface Listed {
  readonly name: ByteString;
  readonly cookie: number;
  readonly fileId: bigint;
  readonly attributes: Attributes | undefined;
  readonly handle: Buffer | undefined;
}

const padded = (length: number): number => (length + 3) & ~3;
/** "Another follows", file id, name, cookie. */
const plainLength = (name: ByteString): number => 4 + 8 + 4 + padded(name.length) + 8;

/** How much one answer may hold. */
interface Room {
  readonly total: number;
  /** Of names alone, as READDIRPLUS counts them. */
  readonly names: number;
}

interface Question {
  readonly directory: Node;
  readonly cookie: number;
  readonly room: Room;
  readonly withAttributes: boolean;
}

function readQuestion(exported: Export, reader: XdrReader, withAttributes: boolean): Question {
  const directory = nodeOf(exported, reader);
  const cookie = reader.u64();
  const verifier = reader.u64();
  const first = reader.u32();
  const total = Math.min(withAttributes ? reader.u32() : first, maxReply) - frame;
  if (cookie > BigInt(Number.MAX_SAFE_INTEGER)) refuse('BAD_COOKIE');
  // 0 is what clients send that do not keep it.
  if (cookie !== 0n && verifier !== 0n && verifier !== exported.cookieVerifier) refuse('BAD_COOKIE');
  return { directory, cookie: Number(cookie), room: { total, names: withAttributes ? first : total }, withAttributes };
}

const listing =
  (withAttributes: boolean): Run =>
  (exported, reader, who) => {
    const question = readQuestion(exported, reader, withAttributes);
    const stats = exported.tree.statDirectory(question.directory);
    check(stats, who, may.read);
    const found = exported.listings.after(question.directory, question.cookie, stats);
    const first = found instanceof Promise ? undefined : answer(exported, question, stats, found, who);
    return first ?? laterAnswer(exported, question, stats, found, who);
  };

async function laterAnswer(
  exported: Export,
  question: Question,
  stats: BigIntStats,
  first: Listing | Promise<Listing>,
  who: Who,
): Promise<Reply> {
  let found = await first;
  for (let { cookie } = question; ; found = await exported.listings.after(question.directory, cookie, stats)) {
    exported.tree.descriptors.turn();
    const reply = answer(exported, question, stats, found, who);
    if (reply !== undefined) return reply;
    cookie = found.cookies.at(-1) as number;
  }
}

/** Undefined: of this part nothing is left, and another part follows. No answer may be empty before the end. */
function answer(exported: Export, question: Question, stats: BigIntStats, found: Listing, who: Who): Reply | undefined {
  const { directory, cookie, withAttributes, room } = question;
  // Attributes of what lies in a directory are for those who may enter it.
  const isOpen = withAttributes && allows(stats, who, may.execute);
  const page = createPage(exported, room, withAttributes, isOpen);
  let isFull = false;
  if (cookie < 1) isFull = !page.add('.', 1, exported.tree.stat(directory), directory);
  const above = directory.parent ?? directory;
  if (cookie < 2 && !isFull) isFull = !page.add('..', 2, exported.tree.stat(above), above);
  const { names, cookies } = found;
  const from = cookie < firstCookie ? 0 : exported.listings.placeAfter(found, cookie);
  exported.tree.looking(directory, (look) => {
    for (let i = from; i < names.length && !isFull; i++) {
      const name = names[i] as ByteString;
      const own = look(name);
      // Undefined: removed since it was read, or on another file system.
      if (own === undefined) continue;
      const node = isOpen ? exported.tree.child(directory, name, own) : undefined;
      isFull = !page.add(name, cookies[i] as number, own, node);
    }
  });
  if (isFull && page.entries.length === 0) refuse('TOOSMALL');
  const isEnd = found.isEnd && !isFull;
  if (page.entries.length === 0 && !isEnd) return undefined;
  return reply(exported, question, exported.describe(stats), page.entries, isEnd);
}

interface Page {
  readonly entries: readonly Listed[];
  /** False: it does not fit any more. */
  add(name: ByteString, cookie: number, stats: BigIntStats, node: Node | undefined): boolean;
}

function createPage({ describe, nodes }: Export, room: Room, withAttributes: boolean, isOpen: boolean): Page {
  const entries: Listed[] = [];
  let { total, names } = room;
  return {
    entries,
    add: (name, cookie, stats, node) => {
      const handle = isOpen && node !== undefined ? nodes.handleOf(node) : undefined;
      const plain = plainLength(name);
      const extra = handle === undefined ? 8 : 8 + attributesLength + 4 + padded(handle.length);
      total -= withAttributes ? plain + extra : plain;
      names -= plain;
      if (total < 0 || names < 0) return false;
      const attributes = handle === undefined ? undefined : describe(stats);
      entries.push({ name, cookie, fileId: stats.ino, attributes, handle });
      return true;
    },
  };
}

function reply(
  { cookieVerifier }: Export,
  { withAttributes }: Question,
  around: Attributes,
  entries: readonly Listed[],
  isEnd: boolean,
): Reply {
  const writeEntry = (writer: XdrWriter, entry: Listed): void => {
    writer.bool(true).u64(entry.fileId).string(toPath(entry.name)).size(entry.cookie);
    if (!withAttributes) return;
    writePostAttributes(writer, entry.attributes);
    writePostHandle(writer, entry.handle);
  };
  return ok((writer) => {
    writePostAttributes(writer, around);
    writer.u64(cookieVerifier);
    for (const entry of entries) writeEntry(writer, entry);
    writer.bool(false).bool(isEnd);
  });
}

export const listingProcedures: readonly Definition[] = [
  { number: 16, name: 'READDIR', blanks: 1, run: listing(false) },
  { number: 17, name: 'READDIRPLUS', blanks: 1, run: listing(true) },
];
