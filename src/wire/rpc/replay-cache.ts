import type { Clock } from '#base/clock.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** Writes a reply after its xid and message type. The returned bytes are sent after it without a copy. */
export type ReplyWriter = (writer: XdrWriter) => Uint8Array | undefined;

/**
 * The duplicate request cache: replies to calls that must not run twice. After a broken connection the client resends such calls
 * on a new connection with the same xid. A resent call gets the first reply, or none while the first copy still runs.
 */
export interface ReplayCache {
  run(
    key: string,
    work: () => ReplyWriter | Promise<ReplyWriter>,
  ): ReplyWriter | undefined | Promise<ReplyWriter | undefined>;
}

/**
 * A reply is kept for at least this time and at most twice as long. Linux keeps replies for the same time, and clients stop
 * resending earlier.
 * After that, the same xid from the same client is a new call.
 */
const retentionMs = 120_000;
/**
 * Enough for the calls in flight of many clients; each entry takes a few hundred bytes. The cache holds at most twice as many.
 */
const maxEntriesPerGeneration = 4096;

/**
 * A reply is kept as a string with one character per byte. The objects that it was encoded from are several times as large, and
 * the garbage collector would visit them again and again.
 */
type StoredReply = string;
const inProgress: unique symbol = Symbol('not answered yet');

export function createReplayCache(clock: Clock): ReplayCache {
  // Two generations, not a list from which each call removes the oldest entry: a Map with constant inserts and deletes allocates
  // new tables all the time.
  let young = new Map<string, StoredReply | typeof inProgress>();
  let old = new Map<string, StoredReply | typeof inProgress>();
  let youngSince = clock.elapsed();
  const writer = new XdrWriter(4096);

  function store(key: string, answer: StoredReply | typeof inProgress): void {
    young.set(key, answer);
    if (young.size >= maxEntriesPerGeneration) rotate();
  }

  function rotate(): void {
    const oldest = old;
    old = young;
    young = new Map();
    youngSince = clock.elapsed();
    // A call that still runs must be recognised when it is resent, however long it takes.
    for (const [each, what] of oldest) if (what === inProgress && !old.has(each)) young.set(each, what);
  }

  function storeReply(key: string, writeReply: ReplyWriter): ReplyWriter {
    writer.offset = 0;
    const data = writeReply(writer);
    const answer = writer.written.toString('latin1') + (data === undefined ? '' : Buffer.from(data).toString('latin1'));
    store(key, answer);
    return replyFrom(answer);
  }

  return {
    run: (key, work) => {
      const elapsed = clock.elapsed() - youngSince;
      if (elapsed >= retentionMs) rotate();
      if (elapsed >= 2 * retentionMs) rotate();
      const known = young.get(key) ?? old.get(key);
      if (known === inProgress) return undefined;
      if (known !== undefined) return replyFrom(known);
      store(key, inProgress);
      const done = work();
      return done instanceof Promise ? done.then((layout) => storeReply(key, layout)) : storeReply(key, done);
    },
  };
}

const replyFrom =
  (answer: StoredReply): ReplyWriter =>
  (writer) => {
    writer.rawLatin1(answer);
    return undefined;
  };
