import type { Clock } from '#base/clock.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** A reply from after its xid and type. What it gives is sent behind it, uncopied. */
export type ReplyWriter = (writer: XdrWriter) => Uint8Array | undefined;

/**
 * Answers to calls that must not be done twice. A client whose connection broke sends them again, on a new connection
 * and under the same xid: it gets the first answer, or none while the first is still being worked on.
 */
export interface ReplayCache {
  run(
    key: string,
    work: () => ReplyWriter | Promise<ReplyWriter>,
  ): ReplyWriter | undefined | Promise<ReplyWriter | undefined>;
}

/**
 * An answer is held for at least this time, and at most for twice as long: as long as Linux holds it, and longer than clients resend.
 * Later the same xid from the same client is another call.
 */
const retentionMs = 120_000;
/** Enough for what many clients have under way; each is a few hundred bytes. At most twice as many are held. */
const maxEntries = 4096;

/**
 * Answers are held as strings with one character for each byte: what they were made from is several times as large, and
 * many small objects, which the collector of memory looks at again and again.
 */
type StoredReply = string;
const running: unique symbol = Symbol('not answered yet');

export function createReplayCache(clock: Clock): ReplayCache {
  // Two generations instead of a list from which the oldest is taken with every call: a Map that is added to and deleted
  // from all the time makes itself new tables all the time.
  let young = new Map<string, StoredReply | typeof running>();
  let old = new Map<string, StoredReply | typeof running>();
  let youngSince = clock.elapsed();
  const writer = new XdrWriter(4096);

  function store(key: string, answer: StoredReply | typeof running): void {
    young.set(key, answer);
    if (young.size >= maxEntries) rotate();
  }

  function rotate(): void {
    const oldest = old;
    old = young;
    young = new Map();
    youngSince = clock.elapsed();
    // What is not answered yet must be known when it comes again, however long it takes.
    for (const [each, what] of oldest) if (what === running && !old.has(each)) young.set(each, what);
  }

  function storeReply(key: string, layout: ReplyWriter): ReplyWriter {
    writer.at = 0;
    const data = layout(writer);
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
      if (known === running) return undefined;
      if (known !== undefined) return replyFrom(known);
      store(key, running);
      const done = work();
      return done instanceof Promise ? done.then((layout) => storeReply(key, layout)) : storeReply(key, done);
    },
  };
}

const replyFrom =
  (answer: StoredReply): ReplyWriter =>
  (writer) => {
    writer.raw(answer);
    return undefined;
  };
