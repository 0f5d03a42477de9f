import * as fs from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Mounted, type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { RpcError } from '../../rpc/errors.ts';
import type { Procedure } from '../../rpc/procedure.ts';
import { XdrWriter } from '../../xdr/writer.ts';
import { mountProgram } from '../mount.ts';
import { NfsError } from '../status.ts';
import { nfsProgram } from '../structures.ts';

/** Returns names, contents, modes, owners and times of a folder outside the export. */
function snapshotOf(folder: string): string[] {
  return fs
    .readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .sort()
    .map((name) => {
      const stats = fs.lstatSync(join(folder, name), { bigint: true });
      const content = stats.isFile() ? fs.readFileSync(join(folder, name), 'latin1') : '';
      return [name, stats.ino, stats.mode, stats.uid, stats.gid, stats.mtimeNs, stats.ctimeNs, content].join(' ');
    });
}

interface TestTarget extends Mounted {
  readonly own: OwnServer;
  readonly handles: readonly Uint8Array[];
  check(): Promise<void>;
}

async function startTarget(): Promise<TestTarget> {
  const own = await startOwnServer({ limits: { descriptors: 8, nodes: 20, namesOfOneDirectory: 4, names: 8 } });
  fs.mkdirSync(join(own.outside, 'd'));
  fs.writeFileSync(join(own.outside, 'd', 'secret'), 'secret');
  fs.mkdirSync(join(own.directory, 'd'));
  fs.writeFileSync(join(own.directory, 'f'), 'content');
  fs.symlinkSync('../outside', join(own.directory, 'l'));
  fs.symlinkSync('../outside/d/secret', join(own.directory, 's'));
  const mounted = await own.mount();
  const { nfs, root } = mounted;
  const found = await Promise.all(['d', 'f', 'l', 's'].map((name) => nfs.lookup(root, name)));
  const handles = [root, ...found.map(({ handle }) => handle)];
  const before = snapshotOf(own.outside);
  return {
    ...mounted,
    own,
    handles,
    check: async () => {
      expect(snapshotOf(own.outside)).toEqual(before);
      expect((await nfs.getattr(root)).type).toBe(2);
      // No input of a client causes an error in the log.
      expect(own.errors).toEqual([]);
    },
  };
}

/** Sends bytes as the arguments of a procedure, and expects any reply. */
async function send({ rpc }: TestTarget, program: number, number: number, args: Uint8Array): Promise<void> {
  const procedure: Procedure<Uint8Array, undefined> = {
    program,
    version: 3,
    number,
    name: `${program}/${number}`,
    encode: (writer, bytes) => {
      writer.fixedOpaque(bytes);
      return undefined;
    },
    decode: () => undefined,
  };
  try {
    await rpc.call(procedure, args);
  } catch (cause) {
    if (cause instanceof NfsError) return;
    expect(cause).toBeInstanceOf(RpcError);
    expect((cause as RpcError).message).toContain('could not read the arguments');
  }
}

type Part = (writer: XdrWriter, handles: readonly Uint8Array[]) => void;

const strangeNames = ['.', '..', '', '/', 'a/b', '../outside', '../outside/d', 'd', 'f', 'l', 's', 'l/d', '\0', 'x'];
const u32 = fc.oneof(fc.nat({ max: 10 }), fc.constantFrom(0xffff_ffff, 0x8000_0000, 65_536), fc.nat());
const word: fc.Arbitrary<Part> = u32.map((value) => (writer) => void writer.u32(value >>> 0));
const small = (max: number): fc.Arbitrary<Part> => fc.nat({ max }).map((value) => (writer) => void writer.u32(value));
const long: fc.Arbitrary<Part> = fc
  .oneof(fc.bigInt({ min: 0n, max: 100n }), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }))
  .map((value) => (writer) => void writer.u64(value));
const handle: fc.Arbitrary<Part> = fc
  .tuple(fc.nat(), fc.nat({ max: 30 }), fc.nat({ max: 255 }))
  .map(([handleIndex, byteIndex, bits]) => (writer, handles) => {
    const bytes = Buffer.from(handles[handleIndex % handles.length] as Uint8Array);
    // Most handles are valid; some have one changed byte.
    if (byteIndex < 2) bytes[byteIndex * 7] = bits;
    writer.opaque(bytes);
  });
const name: fc.Arbitrary<Part> = fc
  .oneof(
    fc.constantFrom(...strangeNames).map((text) => Buffer.from(text)),
    fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
    fc.string({ maxLength: 4 }).map((text) => Buffer.from(text)),
  )
  .map((bytes) => (writer) => void writer.opaque(bytes));
const data: fc.Arbitrary<Part> = fc
  .uint8Array({ maxLength: 2000 })
  .map((bytes) => (writer) => void writer.opaque(bytes));
const all = (...parts: fc.Arbitrary<Part>[]): fc.Arbitrary<Part> =>
  fc.tuple(...parts).map((chosenParts) => (writer, handles) => {
    for (const part of chosenParts) part(writer, handles);
  });
const optional = (part: fc.Arbitrary<Part>): fc.Arbitrary<Part> =>
  fc.tuple(fc.nat({ max: 8 }), part).map(([presence, inner]) => (writer, handles) => {
    writer.u32(presence > 4 ? 1 : presence === 4 ? 2 : 0);
    if (presence > 4) inner(writer, handles);
  });
const time = fc.oneof(
  small(2),
  all(small(0), word, word),
  all(
    fc.constant<Part>((w) => void w.u32(2)),
    word,
    word,
  ),
);
// Valid sizes are small, since a file system may accept any size. Sizes beyond 2^53 are invalid.
const size: fc.Arbitrary<Part> = fc
  .oneof(fc.bigInt({ min: 0n, max: 100_000n }), fc.bigInt({ min: 2n ** 53n, max: 2n ** 64n - 1n }))
  .map((value) => (writer) => void writer.u64(value));
const attributes = all(optional(word), optional(word), optional(word), optional(size), time, time);

const shapes: Readonly<Record<number, fc.Arbitrary<Part>>> = {
  0: all(),
  1: all(handle),
  2: all(handle, attributes, optional(all(word, word))),
  3: all(handle, name),
  4: all(handle, word),
  5: all(handle),
  6: all(handle, long, word),
  7: all(handle, size, word, small(4), data),
  8: all(handle, name, small(3), attributes),
  9: all(handle, name, attributes),
  10: all(handle, name, attributes, name),
  11: all(handle, name, small(8), attributes, word, word),
  12: all(handle, name),
  13: all(handle, name),
  14: all(handle, name, handle, name),
  15: all(handle, handle, name),
  16: all(handle, long, long, word),
  17: all(handle, long, long, word, word),
  18: all(handle),
  19: all(handle),
  20: all(handle),
  21: all(handle, long, word),
};

describe.skipIf(lacks('linux'))('an NFS server that receives invalid calls keeps running', () => {
  test.each(Object.keys(shapes).map(Number))('random bytes as arguments of procedure %d', async (number) => {
    const target = await startTarget();
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 300 }), (bytes) => send(target, nfsProgram, number, bytes)),
      { numRuns: 100 },
    );
    await target.check();
  });

  test.each(Object.entries(shapes))('almost valid arguments of procedure %s', async (number, shape) => {
    const target = await startTarget();
    await fc.assert(
      fc.asyncProperty(shape, fc.nat({ max: 400 }), async (part, endAt) => {
        const writer = new XdrWriter();
        part(writer, target.handles);
        // Some calls are truncated.
        const bytes = endAt < 40 ? writer.written.subarray(0, endAt) : writer.written;
        await send(target, nfsProgram, Number(number), Buffer.from(bytes));
      }),
      { numRuns: 200 },
    );
    await target.check();
  });

  test('in any order, with many in flight at once', async () => {
    const target = await startTarget();
    const call = fc.oneof(
      ...Object.entries(shapes).map(([number, shape]) => shape.map((part) => [Number(number), part] as const)),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(call, { minLength: 1, maxLength: 40 }), async (calls) => {
        await Promise.all(
          calls.map(async ([number, part]) => {
            const writer = new XdrWriter();
            part(writer, target.handles);
            await send(target, nfsProgram, number, Buffer.from(writer.written));
          }),
        );
      }),
      { numRuns: 100 },
    );
    await target.check();
  });

  test.each([0, 1, 2, 3, 4, 5])('random bytes as arguments of procedure %d of MOUNT', async (number) => {
    const target = await startTarget();
    const path = fc
      .array(fc.constantFrom(...strangeNames, 'outside'), { maxLength: 6 })
      .map((names) => new XdrWriter().string(`/${names.join('/')}`).written);
    await fc.assert(
      fc.asyncProperty(fc.oneof(path, fc.uint8Array({ maxLength: 200 })), async (bytes) => {
        await send(target, mountProgram, number, Buffer.from(bytes));
      }),
      { numRuns: 100 },
    );
    await target.check();
  });
});
