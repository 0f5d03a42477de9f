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
const optional = <T>(of: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(of, { nil: undefined });
const set: fc.Arbitrary<SetAttributes> = fc.record({
  mode: optional(u32),
  uid: optional(u32),
  gid: optional(u32),
  size: optional(fc.maxSafeNat()),
  atime: time,
  mtime: time,
});

const reading = (bytes: Uint8Array): XdrReader => {
  const buffer = Buffer.from(bytes);
  return new XdrReader().reset(buffer, new DataView(buffer.buffer, buffer.byteOffset, buffer.length), 0, buffer.length);
};
const written = (write: (writer: XdrWriter) => void): XdrReader => {
  const writer = new XdrWriter(64);
  write(writer);
  return reading(writer.written);
};

describe('decoding returns the encoded values', () => {
  test('of attributes before and after a change', () => {
    fc.assert(
      fc.property(optional(attributes), (given) => {
        expect(readPostAttributes(written((w) => writePostAttributes(w, given)))).toEqual(given);
        expect(readWcc(written((w) => writeWcc(w, given)))).toEqual({ before: undefined, after: given });
      }),
    );
  });

  test('of attributes to set', () => {
    fc.assert(
      fc.property(set, (given) => {
        expect(readSetAttributes(written((w) => writeSetAttributes(w, given)))).toEqual(given);
      }),
    );
  });

  test('of handles up to their maximum length', () => {
    fc.assert(
      fc.property(optional(fc.uint8Array({ maxLength: maxHandleBytes })), (given) => {
        const read = readPostHandle(written((w) => writePostHandle(w, given)));
        expect(read && Buffer.from(read)).toEqual(given && Buffer.from(given));
      }),
    );
    const long = new Uint8Array(maxHandleBytes + 1);
    expect(() => readPostHandle(written((w) => writePostHandle(w, long)))).toThrow(XdrError);
  });

  test("of a mode, without the server's own bits", () => {
    const [given] = fc.sample(attributes, 1) as [Attributes];
    const reader = written((w) => writeAttributes(w, { ...given, mode: 0x8000_01ed }));
    expect(
      readPostAttributes(
        written((w) => {
          w.bool(true);
          w.fixedOpaque(reader.buffer);
        }),
      )?.mode,
    ).toBe(0o755);
  });
});

describe('decoding any reply returns a result or throws a decoding error', () => {
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
      // Mostly small words: they pass for flags and lengths, and so lead deeper than noise does.
      const word = fc.oneof({ weight: 4, arbitrary: fc.nat(3) }, { weight: 1, arbitrary: u32 });
      fc.assert(
        fc.property(fc.array(word, { maxLength: 80 }), fc.nat(3), (words, cut) => {
          const buffer = Buffer.alloc(words.length * 4);
          words.forEach((value, i) => {
            buffer.writeUInt32BE(value, i * 4);
          });
          const reader = reading(buffer.subarray(0, Math.max(0, buffer.length - cut)));
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
