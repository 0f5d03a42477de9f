import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from './client.ts';
import type { Procedure } from './procedure.ts';

/** Returns its argument. */
const echo: Procedure<number, number> = {
  program: 200_000,
  version: 1,
  number: 1,
  name: 'ECHO',
  encode: (writer, value) => {
    writer.u32(value);
    return undefined;
  },
  decode: (reader) => reader.u32(),
};

interface ReceivedCall {
  readonly xid: number;
  readonly value: number;
  readonly socket: Socket;
  answer(value?: number): void;
}

/** A server whose replies the test writes. */
interface ScriptedServer {
  readonly server: Server;
  port: number;
  readonly calls: ReceivedCall[];
  readonly sockets: Socket[];
  /** Called for every call. By default it answers the call. */
  onCall: (call: ReceivedCall) => void;
}

const record = (...words: readonly number[]): Buffer => {
  const buffer = Buffer.alloc(4 + words.length * 4);
  buffer.writeUInt32BE((0x8000_0000 | (words.length * 4)) >>> 0);
  words.forEach((word, i) => {
    buffer.writeUInt32BE(word >>> 0, 4 + i * 4);
  });
  return buffer;
};

async function startScriptedServer(port = 0): Promise<ScriptedServer> {
  const calls: ReceivedCall[] = [];
  const sockets: Socket[] = [];
  const script: ScriptedServer = { server: createServer(), port: 0, calls, sockets, onCall: (call) => call.answer() };
  script.server.on('connection', (socket) => {
    sockets.push(socket);
    let received = Buffer.alloc(0);
    socket.on('error', () => undefined);
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      while (received.length >= 4 && received.length >= 4 + (received.readUInt32BE() & 0x7fff_ffff)) {
        const length = 4 + (received.readUInt32BE() & 0x7fff_ffff);
        const [xid, value] = [received.readUInt32BE(4), received.readUInt32BE(length - 4)];
        received = received.subarray(length);
        const answer = (result = value): void => void socket.write(record(xid, 1, 0, 0, 0, 0, result));
        const call: ReceivedCall = { xid, value, socket, answer };
        calls.push(call);
        script.onCall(call);
      }
    });
  });
  script.server.listen(port, '127.0.0.1');
  await once(script.server, 'listening');
  onTestFinished(async () => {
    for (const socket of sockets) socket.destroy();
    script.server.close();
  });
  script.port = (script.server.address() as AddressInfo).port;
  return script;
}

function connectClient(options: Partial<RpcClientOptions> & { readonly ports: readonly number[] }): RpcClient {
  const [first = 0, ...rest] = options.ports;
  const at = (port: number) => ({ host: '127.0.0.1', port });
  const rpc = createRpcClient({ clock: systemClock(), addresses: [at(first), ...rest.map(at)], ...options });
  onTestFinished(() => rpc.close());
  return rpc;
}

let server: ScriptedServer;
beforeEach(async () => {
  server = await startScriptedServer();
});

describe('a client', () => {
  test('accepts the replies to many concurrent calls over several connections in any order', async () => {
    const heldCalls: ReceivedCall[] = [];
    server.onCall = (call) => {
      heldCalls.push(call);
      if (heldCalls.length === 100) for (const one of heldCalls.toReversed()) one.answer();
    };
    const rpc = connectClient({ ports: [server.port], connections: 4 });
    const all = await Promise.all(Array.from({ length: 100 }, (_, i) => rpc.call(echo, i)));
    expect(all).toEqual(Array.from({ length: 100 }, (_, i) => i));
    expect(server.sockets).toHaveLength(4);
    expect(rpc.pending).toBe(0);
  });

  test('queues calls beyond the in-flight limit', async () => {
    const rpc = connectClient({ ports: [server.port], maxInFlight: 3 });
    const heldCalls: ReceivedCall[] = [];
    server.onCall = (call) => void heldCalls.push(call);
    const all = Promise.all(Array.from({ length: 10 }, (_, i) => rpc.call(echo, i)));
    while (heldCalls.length < 3) await delay(5);
    await delay(30);
    expect(heldCalls).toHaveLength(3);
    expect(rpc.pending).toBe(10);
    server.onCall = (call) => call.answer();
    for (const call of heldCalls) call.answer();
    expect(await all).toHaveLength(10);
  });

  test('rejects a call with the reason of an error reply', async () => {
    const rpc = connectClient({ ports: [server.port] });
    const replies: [readonly number[], object][] = [
      [[1, 0, 0, 0, 1], { failure: 'unsupported', message: 'ECHO: the server does not have this program' }],
      [
        [1, 0, 0, 0, 2, 1, 3],
        { failure: 'unsupported', message: 'ECHO: the server does not have this version of the program' },
      ],
      [[1, 0, 0, 0, 4], { failure: 'garbled' }],
      [[1, 1, 0, 3, 3], { failure: 'unsupported', message: 'ECHO: the server speaks RPC versions 3 to 3' }],
      [[1, 1, 1, 5], { failure: 'denied', message: 'ECHO: a stronger kind of authentication is required' }],
      [[1, 0, 0, 0, 0], { name: 'XdrError' }],
      [[0, 0, 0], { failure: 'garbled' }],
    ];
    for (const [words, error] of replies) {
      server.onCall = ({ xid, socket }) => void socket.write(record(xid, ...words));
      await expect(rpc.call(echo, 1)).rejects.toMatchObject(error);
    }
    server.onCall = (call) => call.answer();
    expect(await rpc.call(echo, 7)).toBe(7);
  });
});

describe('a server that does not answer', () => {
  test('causes an error at the deadline, and its late reply is ignored', async () => {
    server.onCall = () => undefined;
    const rpc = connectClient({ ports: [server.port] });
    await expect(rpc.call(echo, 1, { deadlineMs: 1_000 })).rejects.toMatchObject({
      failure: 'deadline',
      maybeDone: true,
    });
    server.calls[0]?.answer();
    server.onCall = (call) => call.answer();
    expect(await rpc.call(echo, 2)).toBe(2);
    expect(server.sockets).toHaveLength(1);
  });

  test('does not delay a caller that cancels', async () => {
    server.onCall = () => undefined;
    const rpc = connectClient({ ports: [server.port] });
    const caller = new AbortController();
    const call = rpc.call(echo, 1, { signal: caller.signal });
    caller.abort(new Error('enough'));
    await expect(call).rejects.toMatchObject({ failure: 'canceled', cause: { message: 'enough' } });
    await expect(rpc.call(echo, 1, { signal: caller.signal })).rejects.toMatchObject({ maybeDone: false });
    expect(rpc.pending).toBe(0);
  });

  test('is reported as unreachable after the allowed rounds if nothing listens', async () => {
    const { port } = server;
    server.server.close();
    const rpc = connectClient({ ports: [port], dialRounds: 2 });
    await expect(rpc.call(echo, 1)).rejects.toMatchObject({
      failure: 'unreachable',
      maybeDone: false,
      cause: { cause: { code: 'ECONNREFUSED' } },
    });
  });

  test('makes the client use another address, also for pending calls', async () => {
    const other = await startScriptedServer();
    const rpc = connectClient({ ports: [server.port, other.port], stallMs: 100 });
    expect(await rpc.call(echo, 1)).toBe(1);
    server.onCall = () => undefined;
    expect(await rpc.call(echo, 2, { deadlineMs: 5_000 })).toBe(2);
    expect(other.calls.map(({ value }) => value)).toEqual([2]);
    expect(rpc.address.port).toBe(other.port);
  });
});

describe("data for the caller's own buffer", () => {
  /** Requests as many bytes as the buffer holds; the reply has their length and the bytes. */
  const fill: Procedure<Buffer, number> = {
    program: 200_000,
    version: 1,
    number: 2,
    name: 'FILL',
    encode: (writer, destination) => {
      writer.u32(destination.length);
      return undefined;
    },
    decode: (reader, destination) => reader.opaqueView(destination.length).copy(destination),
    decodeHead: (reader, destination) => {
      const length = reader.u32();
      return { target: destination.subarray(0, length), result: length };
    },
  };
  const size = 100_000;

  /** The reply to a FILL, with the byte 7 repeated. */
  const reply = (xid: number): Buffer => {
    const head = record(xid, 1, 0, 0, 0, 0, size);
    head.writeUInt32BE((0x8000_0000 | (head.length - 4 + size)) >>> 0);
    return Buffer.concat([head, Buffer.alloc(size, 7)]);
  };

  test('are written to it in chunks', async () => {
    server.onCall = ({ xid, socket }) => {
      const bytes = reply(xid);
      for (let piece = 0; piece * 30_000 < bytes.length; piece++)
        setTimeout(() => socket.write(bytes.subarray(piece * 30_000, (piece + 1) * 30_000)), piece * 5);
    };
    const destination = Buffer.alloc(size);
    expect(await connectClient({ ports: [server.port] }).call(fill, destination)).toBe(size);
    expect(destination.equals(Buffer.alloc(size, 7))).toBe(true);
  });

  test('are not written to it after the caller has canceled, and other calls continue', async () => {
    server.onCall = ({ xid, socket }) => void socket.write(reply(xid).subarray(0, 40_000));
    const rpc = connectClient({ ports: [server.port] });
    const destination = Buffer.alloc(size);
    const caller = new AbortController();
    const pendingFill = rpc.call(fill, destination, { signal: caller.signal });
    await expect.poll(() => destination.includes(7)).toBe(true);
    caller.abort();
    await expect(pendingFill).rejects.toMatchObject({ failure: 'canceled' });
    // The caller may reuse the buffer now.
    destination.fill(1);
    const [fillCall] = server.calls;
    fillCall?.socket.write(reply(fillCall.xid).subarray(40_000));
    server.onCall = (call) => call.answer();
    expect(await rpc.call(echo, 3)).toBe(3);
    await delay(50);
    expect(destination.equals(Buffer.alloc(size, 1))).toBe(true);
  });
});

describe('a connection that breaks', () => {
  test('is re-established, and calls without a reply are resent with the same xid', async () => {
    const resentFlags: boolean[] = [];
    const recordingEcho: Procedure<number, number> = {
      ...echo,
      decode: (reader, _value, resent) => {
        resentFlags.push(resent);
        return reader.u32();
      },
    };
    server.onCall = ({ socket }) => {
      server.onCall = (call) => call.answer();
      socket.destroy();
    };
    const rpc = connectClient({ ports: [server.port] });
    expect(await rpc.call(recordingEcho, 5)).toBe(5);
    expect(server.calls.map(({ xid }) => xid)).toEqual([server.calls[0]?.xid, server.calls[0]?.xid]);
    expect(await rpc.call(recordingEcho, 6)).toBe(6);
    expect(resentFlags).toEqual([true, false]);
  });

  test('leaves the outcome unknown if it is not re-established before the deadline', async () => {
    server.onCall = ({ socket }) => {
      server.server.close();
      socket.destroy();
    };
    const rpc = connectClient({ ports: [server.port] });
    await expect(rpc.call(echo, 5, { deadlineMs: 2_000 })).rejects.toMatchObject({
      failure: 'deadline',
      maybeDone: true,
    });
  });

  test('is not waited for when the client is closed: every pending call is rejected', async () => {
    server.onCall = () => undefined;
    const rpc = connectClient({ ports: [server.port] });
    const call = rpc.call(echo, 1);
    rpc.close();
    await expect(call).rejects.toMatchObject({ failure: 'closed' });
    await expect(rpc.call(echo, 1)).rejects.toMatchObject({ failure: 'closed' });
  });
});

describe('a malicious server that sends', () => {
  test.each([
    ['a record that is too long', Buffer.from('ffffffff', 'hex')],
    ['a record without an xid', record()],
  ])('%s loses its connection, and the call fails', async (_what, bytes) => {
    server.onCall = ({ socket }) => void socket.write(bytes);
    const rpc = connectClient({ ports: [server.port] });
    await expect(rpc.call(echo, 1)).rejects.toMatchObject({ failure: 'garbled' });
    server.onCall = (call) => call.answer();
    expect(await rpc.call(echo, 2)).toBe(2);
  });

  test('replies to unknown xids does not disturb other calls', async () => {
    server.onCall = (call) => {
      for (let i = 0; i < 1000; i++) call.socket.write(record(call.xid + 1000 + i, 1, 0, 0, 0, 0, 9));
      call.answer();
      call.answer(99);
    };
    const rpc = connectClient({ ports: [server.port] });
    expect(await Promise.all([1, 2, 3].map((i) => rpc.call(echo, i)))).toEqual([1, 2, 3]);
  });
});
