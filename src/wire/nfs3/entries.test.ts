import { expect, test } from 'vitest';
import { XdrError, XdrReader } from '../xdr/reader.ts';
import { XdrWriter } from '../xdr/writer.ts';
import { readDirectoryPagePlus } from './entries.ts';
import { type Attributes, type EntryPlus, writePostAttributes, writePostHandle } from './structures.ts';

const attributesOf = (n: number): Attributes => ({
  type: 1,
  mode: 0o644,
  links: 1,
  uid: n,
  gid: n + 1,
  size: n * 2 ** 33,
  used: 4096,
  major: 0,
  minor: 0,
  fsid: 2n ** 63n + BigInt(n),
  fileId: BigInt(n),
  atime: n,
  atimeNs: 1,
  mtime: n,
  mtimeNs: 2,
  ctime: n,
  ctimeNs: 3,
});

const entries: readonly EntryPlus[] = [
  {
    fileId: 2n ** 64n - 1n,
    name: 'all',
    bytes: undefined,
    cookie: 1n,
    attributes: attributesOf(7),
    handle: Buffer.alloc(64, 7),
  },
  { fileId: 2n, name: 'ü', bytes: undefined, cookie: 2n, attributes: undefined, handle: Buffer.from('odd') },
  {
    fileId: 3n,
    name: 'no handle',
    bytes: undefined,
    cookie: 2n ** 63n,
    attributes: attributesOf(9),
    handle: undefined,
  },
  {
    fileId: 4n,
    name: 'x\ufffd',
    bytes: Buffer.from('x\xff', 'latin1'),
    cookie: 4n,
    attributes: undefined,
    handle: undefined,
  },
];

/** A page at an offset in a buffer, like in a reply. */
function page(): { readonly buffer: Buffer; readonly reader: XdrReader } {
  const writer = new XdrWriter(4096).u32(0xdead_beef);
  writePostAttributes(writer, attributesOf(1));
  writer.u64(99n);
  for (const { fileId, name, bytes, cookie, attributes, handle } of entries) {
    writer
      .bool(true)
      .u64(fileId)
      .string(bytes ?? name)
      .u64(cookie);
    writePostAttributes(writer, attributes);
    writePostHandle(writer, handle);
  }
  const buffer = Buffer.from(writer.bool(false).bool(true).written);
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
  return { buffer, reader: new XdrReader().reset(buffer, view, 4, buffer.length) };
}

test('an entry returns the contents of its page, also after the memory was reused', () => {
  const { buffer, reader } = page();
  const listed = readDirectoryPagePlus(reader);
  buffer.fill(0xff);
  expect({ verifier: listed.verifier, isEnd: listed.isEnd }).toEqual({ verifier: 99n, isEnd: true });
  const readEntries = listed.entries.map(({ fileId, name, bytes, cookie, attributes, handle }) => ({
    fileId,
    name,
    cookie,
    attributes,
    bytes: bytes && Buffer.from(bytes),
    handle: handle && Buffer.from(handle),
  }));
  expect(readEntries).toEqual(entries);
});

test('a truncated or invalid page is rejected when it arrives, not when its entries are read', () => {
  const { buffer, reader } = page();
  for (let end = 4; end < buffer.length; end++) {
    reader.reset(buffer, reader.view, 4, end);
    expect(() => readDirectoryPagePlus(reader)).toThrow(XdrError);
  }
  // The flag whether a handle follows must be 0 or 1.
  const at = buffer.indexOf('all') + 4 + 8 + 4 + 84;
  expect(buffer.readUInt32BE(at)).toBe(1);
  buffer.writeUInt32BE(2, at);
  expect(() => readDirectoryPagePlus(reader.reset(buffer, reader.view, 4, buffer.length))).toThrow(
    '2 is neither true nor false',
  );
});
