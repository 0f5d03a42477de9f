import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { XdrError, XdrReader } from './reader.ts';
import { XdrWriter } from './writer.ts';

function readerOf(bytes: Uint8Array): XdrReader {
  const buffer = Buffer.from(bytes);
  return new XdrReader().reset(buffer, new DataView(buffer.buffer, buffer.byteOffset, buffer.length), 0, buffer.length);
}

const encode = (write: (writer: XdrWriter) => unknown): Buffer => {
  // A small buffer, so that the writer has to grow it.
  const writer = new XdrWriter(8);
  write(writer);
  return Buffer.from(writer.written);
};

describe('an XdrReader reads back what an XdrWriter wrote', () => {
  test('numbers', () => {
    fc.assert(
      fc.property(
        fc.nat(0xffff_ffff),
        fc.integer(),
        fc.bigInt(0n, 2n ** 64n - 1n),
        fc.maxSafeNat(),
        fc.boolean(),
        (u, i, l, s, b) => {
          const reader = readerOf(encode((w) => w.u32(u).i32(i).u64(l).size(s).bool(b)));
          expect([reader.u32(), reader.i32(), reader.u64(), reader.size(), reader.bool()]).toEqual([u, i, l, s, b]);
          expect(reader.remaining).toBe(0);
        },
      ),
    );
  });

  test('bytes and text, padded to four', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.string({ unit: 'binary', maxLength: 200 }), (bytes, text) => {
        fc.pre(text.isWellFormed());
        const wire = encode((w) => w.opaque(bytes).string(text).fixedOpaque(bytes).string(bytes));
        expect(wire.length % 4).toBe(0);
        const reader = readerOf(wire);
        expect(reader.opaque(200)).toEqual(Buffer.from(bytes));
        expect(reader.string(1000)).toBe(text);
        expect(reader.fixedOpaque(bytes.length)).toEqual(Buffer.from(bytes));
        expect(reader.opaqueView(200)).toEqual(Buffer.from(bytes));
        expect(reader.remaining).toBe(0);
      }),
    );
  });

  test('bytes match a known encoding', () => {
    expect(encode((w) => w.u32(1).string('abcde').bool(true)).toString('hex')).toBe(
      '00000001' + '00000005' + '6162636465000000' + '00000001',
    );
  });

  test('a name that is not UTF-8 keeps its bytes', () => {
    const name = Buffer.from([0x66, 0xff, 0x6f]);
    expect(readerOf(encode((w) => w.string(name))).name(255)).toEqual({ text: 'f\ufffdo', bytes: name });
    expect(readerOf(encode((w) => w.string('füß'))).name(255)).toEqual({ text: 'füß', bytes: undefined });
  });
});

describe('an XdrReader does not trust received bytes', () => {
  test('a length beyond its bound or beyond the end is an error', () => {
    const long = encode((w) => w.opaque(Buffer.alloc(100)));
    expect(() => readerOf(long).opaque(99)).toThrow(XdrError);
    expect(() => readerOf(long.subarray(0, 50)).opaque(100)).toThrow(XdrError);
    expect(() => readerOf(encode((w) => w.u32(0xffff_ffff))).string(2 ** 31)).toThrow(XdrError);
  });

  test('an invalid boolean or size is an error', () => {
    expect(() => readerOf(encode((w) => w.u32(2))).bool()).toThrow(XdrError);
    expect(() => readerOf(encode((w) => w.u64(2n ** 53n))).size()).toThrow(XdrError);
    expect(readerOf(encode((w) => w.u64(2n ** 53n - 1n))).size()).toBe(Number.MAX_SAFE_INTEGER);
  });

  test('any bytes give a value or an XdrError, and nothing beyond the end is read', () => {
    const verbs = [
      'u32',
      'i32',
      'u64',
      'size',
      'bool',
      'opaque',
      'opaqueView',
      'string',
      'name',
      'fixedOpaque',
    ] as const;
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), fc.array(fc.constantFrom(...verbs)), (bytes, calls) => {
        const reader = readerOf(bytes);
        try {
          for (const verb of calls) {
            reader[verb](32);
            expect(reader.remaining).toBeGreaterThanOrEqual(0);
          }
        } catch (thrown) {
          expect(thrown).toBeInstanceOf(XdrError);
        }
      }),
    );
  });

  test.each([-1, 1.5, Number.NaN, 2 ** 53])('%s is not written as a size', (value) => {
    expect(() => new XdrWriter().size(value)).toThrow(XdrError);
  });
});
