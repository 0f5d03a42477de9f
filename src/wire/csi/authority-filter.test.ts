import { mkdtempDisposable } from 'node:fs/promises';
import { connect as connectHttp2, createServer as createHttp2Server } from 'node:http2';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { afterEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';

import { createAuthorityFilter, withAcceptableAuthority } from './authority-filter.ts';
import { GetPluginInfoResponseSchema, Identity } from './generated/csi.ts';
import { createMethods, decodeFrame, encodeFrame } from './grpc.ts';
import { createHpackDecoder, encodeAsLiterals, type HeaderField } from './hpack.ts';
import { createGrpcServer } from './server.ts';

const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');

function frame(type: number, flags: number, stream: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(9);
  header.writeUIntBE(payload.length, 0, 3);
  header.writeUInt8(type, 3);
  header.writeUInt8(flags, 4);
  header.writeUInt32BE(stream, 5);
  return Buffer.concat([header, payload]);
}

const settings = frame(4, 0, 0);
const text = (value: string): Buffer => Buffer.concat([Buffer.of(value.length), Buffer.from(value)]);
/** A literal that the decoder adds to its dynamic table, as Go's encoder requests. */
const indexedField = (name: string, value: string): Buffer => Buffer.concat([Buffer.of(0x40), text(name), text(value)]);
const dynamicField = (index: number): Buffer => Buffer.of(0x80 | (61 + index));

const socketPath = '/var/lib/kubelet/plugins_registry/file.stowage.dev-reg.sock';
const fields = (authority: string): readonly HeaderField[] => [
  [':method', 'POST'],
  [':scheme', 'http'],
  [':path', '/csi.v1.Identity/GetPluginInfo'],
  [':authority', authority],
  ['content-type', 'application/grpc'],
  ['te', 'trailers'],
];

/** A client that sends raw HTTP/2 frames, and reads the reply of a stream. */
async function rawPeer(path: string) {
  const socket = connect(path);
  const decoder = createHpackDecoder(65_536);
  let rest = Buffer.alloc(0);
  const receivedFrames: { type: number; stream: number; payload: Buffer; fields: readonly HeaderField[] }[] = [];
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  socket.on('close', () => resolve());
  socket.on('error', () => resolve());
  socket.on('data', (chunk: Buffer) => {
    rest = Buffer.concat([rest, chunk]);
    while (rest.length >= 9 && rest.length >= 9 + rest.readUIntBE(0, 3)) {
      const length = rest.readUIntBE(0, 3);
      const payload = Buffer.from(rest.subarray(9, 9 + length));
      const type = rest.readUInt8(3);
      if (type === 4 && (rest.readUInt8(4) & 1) === 0) socket.write(frame(4, 1, 0));
      receivedFrames.push({
        type,
        stream: rest.readUInt32BE(5),
        payload,
        fields: type === 1 ? decoder.decode(payload) : [],
      });
      rest = rest.subarray(9 + length);
    }
  });
  const statusOf = (stream: number): string | undefined =>
    receivedFrames
      .filter((one) => one.stream === stream)
      .flatMap((one) => one.fields)
      .find(([name]) => name === 'grpc-status')?.[1];
  return {
    socket,
    closed,
    write: (...parts: readonly Buffer[]) => socket.write(Buffer.concat(parts)),
    /** Undefined: the stream was reset, or the connection ended. */
    answer: async (stream: number): Promise<{ status: string | undefined; message: Buffer }> => {
      await expect
        .poll(
          () =>
            statusOf(stream) !== undefined ||
            socket.destroyed ||
            receivedFrames.some((one) => one.type === 3 && one.stream === stream),
        )
        .toBe(true);
      const message = Buffer.concat(
        receivedFrames.filter((one) => one.type === 0 && one.stream === stream).map((one) => one.payload),
      );
      return { status: statusOf(stream), message };
    },
  };
}

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

async function startServer(): Promise<string> {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-csi-'));
  cleanups.push(() => folder[Symbol.asyncDispose]());
  const path = join(folder.path, 'csi.sock');
  const grpc = createGrpcServer({
    methods: createMethods(Identity, { getPluginInfo: async () => ({ name: 'file.stowage.dev', vendorVersion: '1' }) }),
    clock: systemClock(),
    statusOf: (thrown) => ({ code: 13, message: String(thrown) }),
  });
  cleanups.push(() => grpc.close(0));
  const { promise, resolve } = Promise.withResolvers<void>();
  grpc.server.listen(path, resolve);
  await promise;
  return path;
}

const endStream = 1;
const endHeaders = 4;
const body = encodeFrame(new Uint8Array());
const nameIn = (message: Buffer): string => fromBinary(GetPluginInfoResponseSchema, decodeFrame(message)).name;

describe('a client that sends the path of the socket as the authority', () => {
  test('is answered, also when its headers refer to the dynamic table', async () => {
    const peer = await rawPeer(await startServer());
    cleanups.push(() => peer.socket.destroy());
    const block = Buffer.concat(fields(socketPath).map(([name, value]) => indexedField(name, value)));
    peer.write(preface, settings, frame(1, endHeaders, 1, block), frame(0, endStream, 1, body));
    const first = await peer.answer(1);
    expect(first.status).toBe('0');
    expect(nameIn(first.message)).toBe('file.stowage.dev');
    // The same six fields by their indexes in the dynamic table: the newest entry has index 1.
    const repeatedBlock = Buffer.concat([6, 5, 4, 3, 2, 1].map(dynamicField));
    peer.write(frame(1, endHeaders, 3, repeatedBlock), frame(0, endStream, 3, body));
    expect((await peer.answer(3)).status).toBe('0');
  });

  test('is answered with headers in several frames, padded, with a priority, and byte by byte', async () => {
    const peer = await rawPeer(await startServer());
    cleanups.push(() => peer.socket.destroy());
    const block = encodeAsLiterals(fields(socketPath));
    const head = Buffer.concat([Buffer.of(7), Buffer.from([0, 0, 0, 0, 15]), block.subarray(0, 20), Buffer.alloc(7)]);
    const all = Buffer.concat([
      preface,
      settings,
      frame(1, 0x8 | 0x20, 1, head),
      frame(9, 0, 1, block.subarray(20, 50)),
      frame(9, endHeaders, 1, block.subarray(50)),
      frame(0, endStream, 1, body),
    ]);
    for (const byte of all) peer.write(Buffer.of(byte));
    expect((await peer.answer(1)).status).toBe('0');
  });

  test('is answered after requests with a valid authority', async () => {
    const peer = await rawPeer(await startServer());
    cleanups.push(() => peer.socket.destroy());
    const validBlock = Buffer.concat(fields('localhost').map(([name, value]) => indexedField(name, value)));
    peer.write(preface, settings, frame(1, endHeaders, 1, validBlock), frame(0, endStream, 1, body));
    expect((await peer.answer(1)).status).toBe('0');
    const invalidBlock = Buffer.concat([
      ...[6, 5, 4].map(dynamicField),
      indexedField(':authority', socketPath),
      dynamicField(3),
    ]);
    peer.write(frame(1, endHeaders, 3, invalidBlock), frame(0, endStream, 3, body));
    expect((await peer.answer(3)).status).toBe('0');
    // The fields by their indexes in the table, which has one more entry now.
    const laterBlock = Buffer.concat([7, 6, 5, 1, 3, 2].map(dynamicField));
    peer.write(frame(1, endHeaders, 5, laterBlock), frame(0, endStream, 5, body));
    expect((await peer.answer(5)).status).toBe('0');
  });

  test('is answered like one without an authority', async () => {
    const peer = await rawPeer(await startServer());
    cleanups.push(() => peer.socket.destroy());
    const block = encodeAsLiterals(fields(''));
    peer.write(preface, settings, frame(1, endHeaders, 1, block), frame(0, endStream, 1, body));
    expect((await peer.answer(1)).status).toBe('0');
  });
});

describe('the filter ends the connection on', () => {
  const openBlock = frame(1, 0, 1, encodeAsLiterals(fields(socketPath)));
  test.each([
    ['another frame within a header block', [openBlock, frame(0, endStream, 1, body)]],
    ['a header block that continues without a beginning', [frame(9, endHeaders, 1, Buffer.of(0))]],
    ['a header block in endless pieces', [openBlock, ...Array.from({ length: 20 }, () => frame(9, 0, 1))]],
    ['a field that is in no table', [frame(1, endHeaders, 1, Buffer.of(0xff, 0x80, 0x01))]],
    ['a number without an end', [frame(1, endHeaders, 1, Buffer.alloc(20, 0xff))]],
    ['a truncated string', [frame(1, endHeaders, 1, Buffer.of(0x40, 0x7f, 0x01))]],
    ['a frame that is all padding', [frame(1, endHeaders | 8, 1, Buffer.of(9, 0))]],
    ['a table that is larger than agreed', [frame(1, endHeaders, 1, Buffer.of(0x3f, 0xff, 0x7f))]],
  ])('%s', async (_what, frames) => {
    const peer = await rawPeer(await startServer());
    peer.write(preface, settings, ...frames);
    await peer.closed;
  });

  test('a frame that is too large', () => {
    const filter = createAuthorityFilter();
    filter(Buffer.concat([preface, settings]));
    const header = Buffer.from([0x00, 0x40, 0x01, 1, 4, 0, 0, 0, 1]);
    expect(() => filter(header)).toThrow('a frame is too large');
  });
});

test('the filter passes valid bytes unchanged', () => {
  const filter = createAuthorityFilter();
  const block = Buffer.concat(fields('localhost').map(([name, value]) => indexedField(name, value)));
  const all = Buffer.concat([
    preface,
    settings,
    frame(1, endHeaders, 1, block),
    frame(0, 0, 1, Buffer.alloc(9_000, 1)),
    frame(0, endStream, 1, body),
    frame(6, 0, 0, Buffer.alloc(8)),
  ]);
  const passed: Buffer[] = [];
  for (let at = 0; at < all.length; at += 7) passed.push(...filter(all.subarray(at, at + 7)));
  expect(Buffer.concat(passed).equals(all)).toBe(true);
});

test("the filter passes the bytes of Node's own HTTP/2 unchanged, with its tables and Huffman codes", async () => {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-csi-'));
  cleanups.push(() => folder[Symbol.asyncDispose]());
  const http2 = createHttp2Server();
  const receivedHeaders: Record<string, unknown>[] = [];
  http2.on('stream', (stream, headers) => {
    receivedHeaders.push({ ...headers });
    stream.respond({ ':status': 204 }, { endStream: true });
  });
  const path = join(folder.path, 's');
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    http2.emit('connection', withAcceptableAuthority(socket));
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  server.listen(path, resolve);
  await promise;
  const session = connectHttp2('http://localhost', { createConnection: () => connect(path) });
  cleanups.push(
    () => session.destroy(),
    () => server.close(),
    () => sockets.forEach((socket) => void socket.destroy()),
  );
  const printable = Array.from({ length: 94 }, (_, index) => String.fromCharCode(33 + index)).join('');
  for (let round = 0; round < 40; round++) {
    const sent = {
      ':path': `/p${round}?${'x'.repeat(round)}`,
      ':authority': round > 20 ? printable : 'localhost',
      'accept-encoding': 'gzip, deflate',
      'user-agent': `agent ${round % 3}`,
      'x-all': `${printable} ${round}`,
      'x-long': 'ab'.repeat(round * 20),
      via: 'somebody',
      'www-authenticate': 'x',
      'if-match': 'y',
      range: 'z',
    };
    const request = session.request(sent);
    const { promise: ended, resolve: end, reject } = Promise.withResolvers<void>();
    request.on('error', reject);
    request.on('close', () => end());
    request.resume();
    await ended;
    expect(receivedHeaders.at(-1)).toMatchObject({ ...sent, ':authority': 'localhost' });
  }
});
