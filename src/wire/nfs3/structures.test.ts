import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Procedure } from '../rpc/procedure.ts';
import { XdrError, XdrReader } from '../xdr/reader.ts';
import { XdrWriter } from '../xdr/writer.ts';
import * as mounting from './mount.ts';
import * as procedures from './procedures.ts';
import { NfsError } from './status.ts';
import {
  type Attributes,
  maxHandleBytes,
  readPostAttributes,
  readPostHandle,
  readSetAttributes,
  readWcc,
  type SetAttributes,
  writeAttributes,
  writePostAttributes,
  writePostHandle,
  writeSetAttributes,
  writeWcc,
} from './structures.ts';

const u32 = fc.nat(0xffff_ffff);
const u64 = fc.bigInt(0n, 2n ** 64n - 1n);
const attributes: fc.Arbitrary<Attributes> = fc.record({
  type: fc.integer({ min: 1, max: 7 }),
  mode: fc.nat(0o7777),
  links: u32,
  uid: u32,
  gid: u32,
  size: fc.maxSafeNat(),
  used: fc.maxSafeNat(),
  major: u32,
  minor: u32,
  fsid: u64,
  fileId: u64,
  atime: u32,
  atimeNs: u32,
  mtime: u32,
  mtimeNs: u32,
  ctime: u32,
  ctimeNs: u32,
});
const time = fc.oneof(
  fc.constant('now' as const),
  fc.record({ seconds: u32, nanoseconds: u32 }),
  fc.constant(undefined),
);
const optionally = <T>(of: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(of, { nil: undefined });
const set: fc.Arbitrary<SetAttributes> = fc.record({
  mode: optionally(u32),
  uid: optionally(u32),
  gid: optionally(u32),
  size: optionally(fc.maxSafeNat()),
  atime: time,
  mtime: time,
});

const readerOf = (bytes: Uint8Array): XdrReader => {
  const buffer = Buffer.from(bytes);
  return new XdrReader().reset(buffer, new DataView(buffer.buffer, buffer.byteOffset, buffer.length), 0, buffer.length);
};
const encodedReader = (write: (writer: XdrWriter) => void): XdrReader => {
  const writer = new XdrWriter(64);
  write(writer);
  return readerOf(writer.written);
};

describe('decoding returns the encoded values', () => {
  test('of attributes before and after a change', () => {
    fc.assert(
      fc.property(optionally(attributes), (original) => {
        expect(readPostAttributes(encodedReader((w) => writePostAttributes(w, original)))).toEqual(original);
        expect(readWcc(encodedReader((w) => writeWcc(w, original)))).toEqual({ before: undefined, after: original });
      }),
    );
  });

  test('of attributes to set', () => {
    fc.assert(
      fc.property(set, (original) => {
        expect(readSetAttributes(encodedReader((w) => writeSetAttributes(w, original)))).toEqual(original);
      }),
    );
  });

  test('of handles up to their maximum length', () => {
    fc.assert(
      fc.property(optionally(fc.uint8Array({ maxLength: maxHandleBytes })), (original) => {
        const read = readPostHandle(encodedReader((w) => writePostHandle(w, original)));
        expect(read && Buffer.from(read)).toEqual(original && Buffer.from(original));
      }),
    );
    const long = new Uint8Array(maxHandleBytes + 1);
    expect(() => readPostHandle(encodedReader((w) => writePostHandle(w, long)))).toThrow(XdrError);
  });

  test("of a mode, without the server's own bits", () => {
    const [original] = fc.sample(attributes, 1) as [Attributes];
    const reader = encodedReader((w) => writeAttributes(w, { ...original, mode: 0x8000_01ed }));
    expect(
      readPostAttributes(
        encodedReader((w) => {
          w.bool(true);
          w.fixedOpaque(reader.buffer);
        }),
      )?.mode,
    ).toBe(0o755);
  });
});

describe('decoding any bytes returns a result or throws a decoding error, for', () => {
  const calls: [Procedure<never, unknown>, unknown][] = [
    [procedures.getattr, new Uint8Array(8)],
    [procedures.setattr, {}],
    [procedures.lookup, {}],
    [procedures.access, {}],
    [procedures.readlink, {}],
    [procedures.read, { into: Buffer.alloc(64) }],
    [procedures.write, { data: Buffer.alloc(64) }],
    [procedures.create, {}],
    [procedures.mkdir, {}],
    [procedures.symlink, {}],
    [procedures.mknod, {}],
    [procedures.remove, {}],
    [procedures.rmdir, {}],
    [procedures.rename, {}],
    [procedures.link, {}],
    [procedures.readdir, {}],
    [procedures.readdirplus, {}],
    [procedures.fsstat, {}],
    [procedures.fsinfo, {}],
    [procedures.pathconf, {}],
    [procedures.commit, {}],
    [mounting.mnt, '/x'],
    [mounting.listExports, undefined],
  ];

  test.each(calls.map(([procedure, args]) => ({ name: procedure.name, procedure, args })))(
    '$name',
    ({ procedure, args }) => {
      // Mostly small words: they are valid flags and lengths, so decoding gets further than with random words.
      const word = fc.oneof({ weight: 4, arbitrary: fc.nat(3) }, { weight: 1, arbitrary: u32 });
      fc.assert(
        fc.property(fc.array(word, { maxLength: 80 }), fc.nat(3), (words, missingBytes) => {
          const buffer = Buffer.alloc(words.length * 4);
          words.forEach((value, i) => {
            buffer.writeUInt32BE(value, i * 4);
          });
          const reader = readerOf(buffer.subarray(0, Math.max(0, buffer.length - missingBytes)));
          try {
            procedure.decode(reader, args as never, false);
            expect(reader.remaining).toBeGreaterThanOrEqual(0);
          } catch (thrown) {
            const expected =
              thrown instanceof XdrError || thrown instanceof NfsError || thrown instanceof mounting.MountError;
            if (!expected) throw thrown;
          }
        }),
        { numRuns: 300 },
      );
    },
  );
});
