import type { Clock } from '#base/clock.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** A reply from after its xid and type. What it gives is sent behind it, uncopied. */
export type Layout = (writer: XdrWriter) => Uint8Array | undefined;

/**
 * Answers to calls that must not be done twice. A client whose connection broke sends them again, on a new connection
 * and under the same xid: it gets the first answer, or none while the first is still being worked on.
 */
export interface ReplayCache {
  once(key: string, work: () => Layout | Promise<Layout>): Layout | undefined | Promise<Layout | undefined>;
}

/**
 * An answer is held for at least this time, and at most for twice as long: as long as Linux holds it, and longer than clients resend.
 * Later the same xid from the same client is another call.
 */
const keptMs = 120_000;
/** Enough for what many clients have under way; each is a few hundred bytes. At most twice as many are held. */
const kept = 4096;

/**
 * Answers are held as strings with one character for each byte: what they were made from is several times as large, and
 * many small objects, which the collector of memory looks at again and again.
 */
type Answer = string;
const running: unique symbol = Symbol('not answered yet');

export function createReplayCache(clock: Clock): ReplayCache {
  // Two generations instead of a list from which the oldest is taken with every call: a Map that is added to and deleted
  // from all the time makes itself new tables all the time.
  let young = new Map<string, Answer | typeof running>();
  let old = new Map<string, Answer | typeof running>();
  let youngSince = clock.elapsed();
  const writer = new XdrWriter(4096);

  function keep(key: string, answer: Answer | typeof running): void {
    young.set(key, answer);
    if (young.size >= kept) age();
  }

  function age(): void {
    const oldest = old;
    old = young;
    young = new Map();
    youngSince = clock.elapsed();
    // What is not answered yet must be known when it comes again, however long it takes.
    for (const [each, what] of oldest) if (what === running && !old.has(each)) young.set(each, what);
  }

  function answered(key: string, layout: Layout): Layout {
    writer.at = 0;
    const data = layout(writer);
    const answer = writer.written.toString('latin1') + (data === undefined ? '' : Buffer.from(data).toString('latin1'));
    keep(key, answer);
    return given(answer);
  }

  return {
    once: (key, work) => {
      const elapsed = clock.elapsed() - youngSince;
      if (elapsed >= keptMs) age();
      if (elapsed >= 2 * keptMs) age();
      const known = young.get(key) ?? old.get(key);
      if (known === running) return undefined;
      if (known !== undefined) return given(known);
      keep(key, running);
      const done = work();
      return done instanceof Promise ? done.then((layout) => answered(key, layout)) : answered(key, done);
    },
  };
}

const given =
  (answer: Answer): Layout =>
  (writer) => {
    writer.raw(answer);
    return undefined;
  };
