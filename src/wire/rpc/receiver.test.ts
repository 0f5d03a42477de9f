import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createReceiver, type DirectRead, type Receiver } from './receiver.ts';

/** Splits a message into fragments with record marks. */
function toFragments(message: Buffer, ...cuts: readonly number[]): Buffer {
  const ends = [...cuts.filter((cut) => cut < message.length).sort((a, b) => a - b), message.length];
  let from = 0;
  return Buffer.concat(
    ends.flatMap((end, index) => {
      const mark = Buffer.alloc(4);
      mark.writeUInt32BE(((index === ends.length - 1 ? 0x8000_0000 : 0) | (end - from)) >>> 0);
      const fragment = message.subarray(from, end);
      from = end;
      return [mark, fragment];
    }),
  );
}

/** Passes bytes to the receiver as Node does: reads up to `at` bytes at a time into the receiver's buffer. */
function feed(receiver: Receiver, bytes: Buffer, at: number): void {
  for (let from = 0; from < bytes.length; ) {
    const taken = bytes.copy(receiver.buffer().subarray(0, at), 0, from);
    from += taken;
    receiver.received(taken);
  }
}

function createCollector(maxRecord = 1 << 20): { readonly receiver: Receiver; readonly records: Buffer[] } {
  const records: Buffer[] = [];
  const onRecord = (buffer: Buffer, _view: DataView, from: number, end: number): void => {
    records.push(Buffer.from(buffer.subarray(from, end)));
  };
  return { receiver: createReceiver({ maxRecord, onRecord }), records };
}

test('the memory of a long record is freed when no further one arrives', () => {
  const { receiver, records } = createCollector();
  const initialSize = receiver.buffer().length;
  const long = message(initialSize * 3);
  feed(receiver, toFragments(long), 1 << 20);
  expect(receiver.buffer().length).toBeGreaterThan(initialSize * 3);
  for (let i = 0; i < 60; i++) feed(receiver, toFragments(message(8, i)), 100);
  feed(receiver, toFragments(long), 1 << 20);
  for (let i = 0; i < 60; i++) feed(receiver, toFragments(message(8, i)), 100);
  expect(receiver.buffer().length).toBeGreaterThan(initialSize * 3);
  for (let i = 60; i < 70; i++) feed(receiver, toFragments(message(8, i)), 100);
  expect(receiver.buffer().length).toBe(initialSize);
  expect(records).toHaveLength(132);
  expect(records.at(-1)).toEqual(message(8, 69));
});

const message = (length: number, seed = 1): Buffer =>
  Buffer.from(Array.from({ length }, (_, i) => (i * 7 + seed) & 255));

describe('records', () => {
  test('are received split at every byte, in one chunk, and several per chunk', () => {
    const all = [message(0), message(3), message(40), message(9, 5)];
    const stream = Buffer.concat(all.map((one) => toFragments(one)));
    for (let size = 1; size <= stream.length; size++) {
      const { receiver, records } = createCollector();
      feed(receiver, stream, size);
      expect(records).toEqual(all);
    }
  });

  test('of several fragments of any length are received in any chunks', () => {
    const one = fc.tuple(fc.uint8Array({ maxLength: 3000 }), fc.array(fc.nat(3000), { maxLength: 5 }));
    fc.assert(
      fc.property(
        fc.array(one, { maxLength: 8 }),
        fc.integer({ min: 1, max: 5000 }),
        fc.boolean(),
        (all, size, pushed) => {
          const stream = Buffer.concat(all.map(([bytes, cuts]) => toFragments(Buffer.from(bytes), ...cuts)));
          const { receiver, records } = createCollector();
          if (pushed) for (let at = 0; at < stream.length; at += size) receiver.push(stream.subarray(at, at + size));
          else feed(receiver, stream, size);
          expect(records).toEqual(all.map(([bytes]) => Buffer.from(bytes)));
        },
      ),
    );
  });

  test('larger than the buffer are received', () => {
    const all = [message(100), message(900_000), message(10), message(300_000, 3)];
    const { receiver, records } = createCollector();
    feed(receiver, Buffer.concat(all.map((one) => toFragments(one))), 70_000);
    expect(records.map((record, i) => record.equals(all[i] as Buffer))).toEqual([true, true, true, true]);
  });

  test('above the limit end the connection, whole or in fragments', () => {
    const { receiver } = createCollector(1000);
    expect(() => feed(receiver, toFragments(message(1001)), 100)).toThrow('a record of 1001 bytes');
    expect(() => feed(createCollector(1000).receiver, toFragments(message(1001), 400, 800), 100)).toThrow(
      'exceeds the limit of 1000',
    );
  });

  test('endless empty fragments take no memory', () => {
    const { receiver, records } = createCollector();
    const empty = Buffer.alloc(4 * 100_000);
    for (let i = 0; i < 20; i++) feed(receiver, empty, 65_536);
    feed(receiver, toFragments(message(5)), 100);
    expect(records).toEqual([message(5)]);
    expect(receiver.buffer().length).toBeLessThan(1 << 20);
  });
});

describe("data that are received into the caller's buffer", () => {
  function createDirectRead(
    length: number,
    after: number,
  ): { stream: Buffer; receiver: Receiver; target: Buffer; log: string[] } {
    const head = message(24);
    const data = message(length, 9);
    const padding = Buffer.alloc((4 - (length & 3)) & 3);
    const stream = Buffer.concat([
      toFragments(message(8)),
      toFragments(Buffer.concat([head, data, padding])),
      toFragments(message(after)),
    ]);
    const target = Buffer.alloc(length);
    const log: string[] = [];
    const receiver = createReceiver({
      maxRecord: 1 << 21,
      onRecord: (_buffer, _view, from, end) => void log.push(`record ${end - from}`),
      onHead: (_buffer, _view, from, receivedEnd): DirectRead | undefined =>
        receivedEnd - from < 24
          ? undefined
          : { from: from + 24, target, done: () => void log.push(`done ${target.equals(data)}`) },
    });
    return { stream, receiver, target, log };
  }

  test.each([20_000, 20_001, 131_071, 500_003, 1_048_576])('arrive in any chunks: %s bytes', (length) => {
    for (const size of [7001, 16_384, 65_536, 1 << 20]) {
      const { stream, receiver, log } = createDirectRead(length, 12);
      feed(receiver, stream, size);
      // A record that arrives in one chunk is not read directly.
      const record = `record ${24 + ((length + 3) & ~3)}`;
      expect([['record 8', 'done true', 'record 12'].join(), ['record 8', record, 'record 12'].join()]).toContain(
        log.join(),
      );
      if (size < length) expect(log).toContain('done true');
    }
  });

  test('do not swallow the record that follows in the same chunk', () => {
    const { stream, receiver, log } = createDirectRead(20_002, 30);
    // All but the last byte of the data's padding arrives first.
    feed(receiver, stream.subarray(0, 15_000), 1 << 20);
    feed(receiver, stream.subarray(15_000), 1 << 20);
    expect(log).toEqual(['record 8', 'done true', 'record 30']);
  });
});
