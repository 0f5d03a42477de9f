import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { connect as connectTls, createServer as createTlsServer, type TlsOptions } from 'node:tls';
import fc from 'fast-check';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { uint32s } from '#testing/rpc-records.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from './client.ts';
import type { Procedure } from './procedure.ts';
import { type Caller, createRpcServer, type RpcServerOptions, type ServedProcedure } from './server.ts';

const program = 200_000;
const procedureOf = (number: number, name: string) => ({ program, version: 3, number, name });

const doubleCall: Procedure<number, number> = {
  ...procedureOf(1, 'DOUBLE'),
  encode: (writer, value) => {
    writer.u32(value);
    return undefined;
  },
  decode: (reader) => reader.u32(),
};
const countCall: Procedure<undefined, number> = {
  ...procedureOf(2, 'COUNT'),
  encode: () => undefined,
  decode: (r) => r.u32(),
};
const whoAmI: Procedure<undefined, string> = {
  ...procedureOf(3, 'WHO'),
  encode: () => undefined,
  decode: (r) => r.string(1000),
};
const failCall: Procedure<undefined, number> = {
  ...procedureOf(4, 'FAIL'),
  encode: () => undefined,
  decode: (r) => r.u32(),
};

function createProcedures(): {
  readonly procedures: ReadonlyMap<number, ServedProcedure>;
  readonly calls: () => number;
} {
  let calls = 0;
  const procedures = new Map<number, ServedProcedure>([
    [
      1,
      {
        name: 'DOUBLE',
        handle: async (reader) => {
          const value = reader.u32();
          await new Promise((resolve) => setImmediate(resolve));
          return (writer) => void writer.u32(value * 2) as undefined;
        },
      },
    ],
    [
      2,
      {
        name: 'COUNT',
        nonIdempotent: true,
        handle: () => {
          const n = ++calls;
          return (writer) => void writer.u32(n) as undefined;
        },
      },
    ],
    [
      3,
      {
        name: 'WHO',
        handle: (_reader, caller: Caller) => (writer) => void writer.string(JSON.stringify(caller)) as undefined,
      },
    ],
    [
      4,
      {
        name: 'FAIL',
        handle: () => {
          throw new Error('broken');
        },
      },
    ],
  ]);
  return { procedures, calls: () => calls };
}

async function startServer(
  options: Partial<RpcServerOptions> = {},
): Promise<{ readonly port: number; readonly calls: () => number; readonly errors: string[] }> {
  const { procedures, calls } = createProcedures();
  const errors: string[] = [];
  const server = createRpcServer({
    programs: [{ number: program, version: 3, procedures }],
    onError: (what) => errors.push(what),
    ...options,
  });
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => sockets.add(socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, calls, errors };
}

function client(port: number, options: Partial<RpcClientOptions> = {}): RpcClient {
  const rpc = createRpcClient({ clock: systemClock(), addresses: [{ host: '127.0.0.1', port }], ...options });
  onTestFinished(() => rpc.close());
  return rpc;
}

/** Starts a server with a procedure 5, which returns after `finish()`. */
async function serveSlowly(options: Partial<RpcServerOptions>) {
  const { promise: finished, resolve: finish } = Promise.withResolvers<void>();
  const handle: ServedProcedure['handle'] = async () => {
    await finished;
    return (writer) => void writer.u32(42) as undefined;
  };
  const procedures = new Map([...createProcedures().procedures, [5, { name: 'SLOW', handle }]]);
  const { port } = await startServer({ programs: [{ number: program, version: 3, procedures }], ...options });
  return { port, finish };
}

/** Calls procedure 5, closes this side of the connection, and expects the reply and then the end. */
async function expectEndAfter(socket: Socket, finish: () => void, port: number): Promise<void> {
  const receivedItems: (Buffer | 'end')[] = [];
  socket.on('data', (chunk: Buffer) => receivedItems.push(chunk)).on('end', () => receivedItems.push('end'));
  socket.end(uint32s(0x8000_0028, 9, 0, 2, program, 3, 5, 0, 0, 0, 0));
  const other = client(port);
  for (let i = 0; i < 20; i++) await other.call(doubleCall, i);
  expect(receivedItems).toEqual([]);
  finish();
  await expect.poll(() => receivedItems, { timeout: 10_000 }).toHaveLength(2);
  expect(receivedItems[1]).toBe('end');
  expect(receivedItems[0]).toEqual(uint32s(0x8000_001c, 9, 1, 0, 0, 0, 0, 42));
}

describe('an RPC server', () => {
  test('answers many concurrent calls on several connections', async () => {
    const { port } = await startServer();
    const rpc = client(port, { connections: 3 });
    const all = await Promise.all(Array.from({ length: 1000 }, (_, i) => rpc.call(doubleCall, i)));
    expect(all).toEqual(Array.from({ length: 1000 }, (_, i) => i * 2));
  });

  test('closes the connection after a client has closed its side and all its calls are done', async () => {
    const { port, finish } = await serveSlowly({});
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    onTestFinished(() => void socket.destroy());
    await expectEndAfter(socket, finish, port);
  });

  test('reports missing programs, malformed arguments and failures, and continues', async () => {
    const { port, errors } = await startServer();
    const rpc = client(port);
    const refusals: [Procedure<number, number>, object][] = [
      [
        { ...doubleCall, program: 5 },
        { failure: 'unsupported', message: 'DOUBLE: the server does not have this program' },
      ],
      [
        { ...doubleCall, version: 2 },
        { failure: 'unsupported', message: 'DOUBLE: the server does not have this version of the program' },
      ],
      [
        { ...doubleCall, number: 99 },
        { failure: 'no-procedure', message: 'DOUBLE: the server does not have this procedure' },
      ],
      [
        { ...doubleCall, encode: () => undefined },
        { failure: 'garbled', message: 'DOUBLE: the server could not read the arguments' },
      ],
    ];
    for (const [procedure, error] of refusals) await expect(rpc.call(procedure, 1)).rejects.toMatchObject(error);
    await expect(rpc.call(failCall, undefined)).rejects.toMatchObject({
      message: 'FAIL: the server had an internal error',
    });
    expect(errors).toEqual(['FAIL failed']);
    expect(await rpc.call(doubleCall, 4)).toBe(8);
  });

  test('passes the address and the AUTH_SYS user to the procedure', async () => {
    const { port } = await startServer();
    expect(JSON.parse(await client(port).call(whoAmI, undefined))).toMatchObject({
      address: '127.0.0.1',
      isEncrypted: false,
    });
    const groups = Array.from({ length: 20 }, (_, i) => 100 + i);
    const clientWithUser = client(port, { identity: { uid: 7, gid: 8, groups, machine: 'here' } });
    expect(JSON.parse(await clientWithUser.call(whoAmI, undefined))).toMatchObject({
      identity: { uid: 7, gid: 8, machine: 'here', groups: groups.slice(0, 16) },
    });
  });

  test('executes a non-idempotent call once, also if it is resent on a new connection', async () => {
    const { port, calls } = await startServer();
    const raw = async (xid: number): Promise<Buffer> => {
      const socket = connect(port, '127.0.0.1');
      const words = [0x8000_0028, xid, 0, 2, program, 3, 2, 0, 0, 0, 0];
      const message = Buffer.alloc(words.length * 4);
      for (const [i, word] of words.entries()) message.writeUInt32BE(word >>> 0, i * 4);
      socket.write(message);
      const [answer] = (await once(socket, 'data')) as [Buffer];
      socket.destroy();
      return answer;
    };
    const [first, resentReply, other] = [await raw(1), await raw(1), await raw(2)];
    expect(resentReply).toEqual(first);
    expect(other).not.toEqual(first);
    expect(calls()).toBe(2);
    expect(await client(port).call(countCall, undefined)).toBe(3);
  });

  test('rejects connections from addresses that are not allowed', async () => {
    const { port } = await startServer({ mayConnect: (address) => address === '10.1.2.3' });
    await expect(client(port, { dialRounds: 1 }).call(doubleCall, 1, { deadlineMs: 500 })).rejects.toMatchObject({
      name: 'RpcError',
    });
  });

  test('answers NULL for all callers, and other procedures only for allowed callers', async () => {
    const { procedures } = createProcedures();
    const withNull = new Map([...procedures, [0, { name: 'NULL', handle: () => () => undefined }]]);
    const { port } = await startServer({
      programs: [{ number: program, version: 3, procedures: withNull }],
      isAllowed: ({ identity }) => identity?.uid === 7,
    });
    const nothing: Procedure<undefined, undefined> = {
      ...procedureOf(0, 'NULL'),
      encode: () => undefined,
      decode: () => undefined,
    };
    await client(port).call(nothing, undefined);
    await expect(client(port).call(doubleCall, 1)).rejects.toMatchObject({
      failure: 'denied',
      message: 'DOUBLE: a stronger kind of authentication is required',
    });
    const clientWithUser = client(port, { identity: { uid: 7, gid: 7, groups: [], machine: 'here' } });
    expect(await clientWithUser.call(doubleCall, 1)).toBe(2);
  });

  test('pauses a client that does not read its replies, without delaying others', async () => {
    const size = 256 * 1024;
    let executed = 0;
    let sent = 0;
    const handle: ServedProcedure['handle'] = () => {
      executed++;
      return (writer) => {
        writer.u32(size);
        return Buffer.alloc(size, executed);
      };
    };
    const { procedures } = createProcedures();
    const { port } = await startServer({
      programs: [{ number: program, version: 3, procedures: new Map([...procedures, [5, { name: 'MUCH', handle }]]) }],
      onSent: () => sent++,
    });
    const calls = 1000;
    const socket = connect(port, '127.0.0.1');
    onTestFinished(() => void socket.destroy());
    const message = Buffer.alloc(calls * 44);
    for (let i = 0; i < calls; i++)
      for (const [j, word] of [0x8000_0028, i, 0, 2, program, 3, 5, 0, 0, 0, 0].entries())
        message.writeUInt32BE(word >>> 0, i * 44 + j * 4);
    socket.pause();
    socket.write(message);
    await expect.poll(() => executed).toBeGreaterThan(10);
    const otherClient = client(port);
    for (let i = 0; i < 50; i++) expect(await otherClient.call(doubleCall, i)).toBe(i * 2);
    // As many replies as the kernel buffers, and a few MiB.
    expect(executed).toBeLessThan(120);
    let received = 0;
    socket.on('data', (chunk) => {
      received += chunk.length;
    });
    socket.resume();
    await expect.poll(() => received, { timeout: 30_000 }).toBe(calls * (4 + 24 + 4 + size));
    expect(executed).toBe(calls);
    expect(sent).toBe(calls);
  });

  test('survives any bytes and keeps serving others', async () => {
    const { port } = await startServer();
    const otherClient = client(port);
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ minLength: 1, maxLength: 200 }), fc.boolean(), async (bytes, framed) => {
        const socket = connect(port, '127.0.0.1');
        socket.on('error', () => undefined);
        const mark = Buffer.alloc(4);
        mark.writeUInt32BE((0x8000_0000 | bytes.length) >>> 0);
        await new Promise<void>((resolve) =>
          socket.write(framed ? Buffer.concat([mark, bytes]) : bytes, () => resolve()),
        );
        expect(await otherClient.call(doubleCall, 21)).toBe(42);
        socket.destroy();
      }),
      { numRuns: 60 },
    );
  });
});

describe.skipIf(lacks('openssl'))('RPC with TLS', () => {
  test('encrypts everything after the probe, also large replies', async () => {
    const serverCertificate = certificate('server');
    const { port } = await startServer({ tls: { key: serverCertificate.key, cert: serverCertificate.cert } });
    const tls = { options: { ca: serverCertificate.cert }, program, version: 3 };
    const rpc = client(port, { tls });
    expect(JSON.parse(await rpc.call(whoAmI, undefined))).toMatchObject({ isEncrypted: true });
    expect(await Promise.all(Array.from({ length: 200 }, (_, i) => rpc.call(doubleCall, i)))).toHaveLength(200);
    // Calls without TLS still work, unless the server requires TLS.
    expect(JSON.parse(await client(port).call(whoAmI, undefined))).toMatchObject({ isEncrypted: false });
  });

  test('rejects a server with an untrusted certificate, or without TLS', async () => {
    const [serverCertificate, other] = [certificate('server'), certificate('other')];
    const { port } = await startServer({ tls: { key: serverCertificate.key, cert: serverCertificate.cert } });
    const distrustingClient = client(port, { tls: { options: { ca: other.cert }, program, version: 3 } });
    await expect(distrustingClient.call(doubleCall, 1)).rejects.toMatchObject({ failure: 'tls' });
    const plain = await startServer();
    const tlsClient = client(plain.port, { tls: { options: { ca: serverCertificate.cert }, program, version: 3 } });
    await expect(tlsClient.call(doubleCall, 1)).rejects.toMatchObject({
      failure: 'tls',
      message: 'the server does not offer TLS',
    });
  });

  test('discards plain text that was injected before the handshake', async () => {
    const serverCertificate = certificate('server');
    const { port, calls } = await startServer({ tls: { key: serverCertificate.key, cert: serverCertificate.cert } });
    const plain = connect(port, '127.0.0.1');
    onTestFinished(() => void plain.destroy());
    // The TLS probe, and the beginning of a call that would consume the client's next bytes.
    plain.write(Buffer.concat([uint32s(0x8000_0028, 1, 0, 2, program, 3, 0, 7, 0, 0, 0), uint32s(0x8000_1000, 2, 0)]));
    await once(plain, 'data');
    const secure = connectTls({
      socket: plain,
      ca: serverCertificate.cert,
      host: '127.0.0.1',
      ALPNProtocols: ['sunrpc'],
    });
    await once(secure, 'secureConnect');
    secure.write(uint32s(0x8000_0028, 3, 0, 2, program, 3, 2, 0, 0, 0, 0));
    const [answer] = (await once(secure, 'data')) as [Buffer];
    expect(answer.readUInt32BE(4)).toBe(3);
    expect(calls()).toBe(1);
  });

  test('starts once for several probes, and nothing more is sent in plain text', async () => {
    const serverCertificate = certificate('server');
    const warnings: string[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning.message);
    process.on('warning', onWarning);
    onTestFinished(() => void process.off('warning', onWarning));
    const { procedures } = createProcedures();
    const slow = Promise.withResolvers<void>();
    const handle: ServedProcedure['handle'] = async () => {
      await slow.promise;
      return (writer) => void writer.u32(0) as undefined;
    };
    const withSlow = new Map([...procedures, [5, { name: 'SLOW', handle }]]);
    const { port } = await startServer({
      tls: serverCertificate,
      programs: [{ number: program, version: 3, procedures: withSlow }],
    });
    const plain = connect(port, '127.0.0.1');
    onTestFinished(() => void plain.destroy());
    const call = (xid: number, procedure: number, kind = 0): Buffer =>
      uint32s(0x8000_0028, xid, 0, 2, program, 3, procedure, kind, 0, 0, 0);
    const probes = Array.from({ length: 20 }, (_, i) => call(10 + i, 0, 7));
    plain.write(Buffer.concat([call(1, 5), ...probes, call(2, 2)]));
    const [probeReply] = (await once(plain, 'data')) as [Buffer];
    expect([probeReply.readUInt32BE(4), probeReply.length]).toEqual([10, 36]);
    const secured = connectTls({
      socket: plain,
      ca: serverCertificate.cert,
      host: '127.0.0.1',
      ALPNProtocols: ['sunrpc'],
    });
    await once(secured, 'secureConnect');
    slow.resolve();
    secured.write(call(3, 2));
    const [answer] = (await once(secured, 'data')) as [Buffer];
    // COUNT returns 1, so the call in plain text was not executed.
    expect([answer.readUInt32BE(4), answer.readUInt32BE(answer.length - 4)]).toEqual([3, 1]);
    secured.write(call(4, 2));
    expect(((await once(secured, 'data')) as [Buffer])[0].readUInt32BE(4)).toBe(4);
    expect(warnings).toEqual([]);
  });

  test('starts for a client whose connection was paused', async () => {
    const serverCertificate = certificate('server');
    const { port } = await startServer({ tls: serverCertificate });
    const plain = connect(port, '127.0.0.1');
    onTestFinished(() => void plain.destroy());
    // More calls than the in-flight limit.
    const doubles = Array.from({ length: 200 }, (_, i) => uint32s(0x8000_002c, i, 0, 2, program, 3, 1, 0, 0, 0, 0, i));
    plain.write(Buffer.concat([...doubles, uint32s(0x8000_0028, 999, 0, 2, program, 3, 0, 7, 0, 0, 0)]));
    let receivedBytes = Buffer.alloc(0);
    while (!receivedBytes.includes('STARTTLS'))
      receivedBytes = Buffer.concat([receivedBytes, ...((await once(plain, 'data')) as [Buffer])]);
    const secured = connectTls({
      socket: plain,
      ca: serverCertificate.cert,
      host: '127.0.0.1',
      ALPNProtocols: ['sunrpc'],
    });
    await once(secured, 'secureConnect');
    secured.write(uint32s(0x8000_0028, 3, 0, 2, program, 3, 2, 0, 0, 0, 0));
    expect(((await once(secured, 'data')) as [Buffer])[0].readUInt32BE(4)).toBe(3);
  });

  test('closes the connection after a client has closed its side and all its calls are done', async () => {
    const serverCertificate = certificate('server');
    const { port, finish } = await serveSlowly({ tls: serverCertificate });
    const plain = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    onTestFinished(() => void plain.destroy());
    plain.write(uint32s(0x8000_0028, 1, 0, 2, program, 3, 0, 7, 0, 0, 0));
    await once(plain, 'data');
    const secure = connectTls({
      socket: plain,
      ca: serverCertificate.cert,
      host: '127.0.0.1',
      ALPNProtocols: ['sunrpc'],
    });
    await once(secure, 'secureConnect');
    await expectEndAfter(secure, finish, port);
  });

  test("presents the client's certificate if the server requires it", async () => {
    const [serverCertificate, clientCertificate] = [certificate('server'), certificate('client')];
    const { port } = await startServer({
      tls: {
        key: serverCertificate.key,
        cert: serverCertificate.cert,
        ca: clientCertificate.cert,
        requestCert: true,
        rejectUnauthorized: true,
      },
    });
    const options = { ca: serverCertificate.cert };
    const otherClient = client(port, { tls: { options: { ...options, ...clientCertificate }, program, version: 3 } });
    expect(await otherClient.call(doubleCall, 1)).toBe(2);
    const untrustedClient = client(port, {
      tls: { options: { ...options, ...certificate('stranger') }, program, version: 3 },
    });
    await expect(untrustedClient.call(doubleCall, 1, { deadlineMs: 3_000 })).rejects.toMatchObject({
      name: 'RpcError',
    });
    const clientWithoutCertificate = client(port, { tls: { options, program, version: 3 }, dialRounds: 1 });
    await expect(clientWithoutCertificate.call(doubleCall, 1, { deadlineMs: 3_000 })).rejects.toMatchObject({
      name: 'RpcError',
    });
  });

  describe('negotiates its protocol by ALPN', () => {
    /** A server that grants TLS to every client, and then answers 42 to every call. */
    async function startTlsServer(options: TlsOptions): Promise<{ readonly port: number }> {
      const tls = createTlsServer(options, (secured) => {
        secured.on('data', (call: Buffer) =>
          secured.write(uint32s(0x8000_001c, call.readUInt32BE(4), 1, 0, 0, 0, 0, 42)),
        );
      });
      const server = createServer((socket) => {
        socket.once('data', (call: Buffer) => {
          socket.write(
            Buffer.concat([
              uint32s(0x8000_0020, call.readUInt32BE(4), 1, 0, 0, 8),
              Buffer.from('STARTTLS'),
              uint32s(0),
            ]),
          );
          tls.emit('connection', socket);
        });
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      onTestFinished(() => void server.close());
      return { port: (server.address() as AddressInfo).port };
    }

    /** Returns the protocol that the server chose for a client with these ALPN protocols. */
    async function negotiatedProtocol(
      port: number,
      ca: Buffer,
      offered: string[] | undefined,
    ): Promise<string | false | null> {
      const plain = connect(port, '127.0.0.1');
      onTestFinished(() => void plain.destroy());
      plain.write(uint32s(0x8000_0028, 1, 0, 2, program, 3, 0, 7, 0, 0, 0));
      await once(plain, 'data');
      const secure = connectTls({ socket: plain, ca, host: '127.0.0.1', ALPNProtocols: offered });
      await once(secure, 'secureConnect');
      return secure.alpnProtocol;
    }

    test('as a client, and rejects a server that chooses another protocol', async () => {
      const serverCertificate = certificate('server');
      const receivedItems: (readonly string[])[] = [];
      const ALPNCallback: TlsOptions['ALPNCallback'] = ({ protocols }) => {
        receivedItems.push(protocols);
        return protocols[0];
      };
      const tls = { options: { ca: serverCertificate.cert }, program, version: 3 };
      const otherClient = await startTlsServer({ ...serverCertificate, ALPNCallback });
      expect(await client(otherClient.port, { tls }).call(doubleCall, 21)).toBe(42);
      expect(receivedItems).toEqual([['sunrpc']]);
      const other = await startTlsServer({ ...serverCertificate, ALPNProtocols: ['h2'] });
      await expect(client(other.port, { tls, dialRounds: 1 }).call(doubleCall, 21)).rejects.toMatchObject({
        failure: 'tls',
      });
      // Linux's server does not use ALPN.
      const silent = await startTlsServer(serverCertificate);
      expect(await client(silent.port, { tls }).call(doubleCall, 21)).toBe(42);
    });

    test('as a server, and rejects clients that offer only other protocols', async () => {
      const serverCertificate = certificate('server');
      const { port } = await startServer({ tls: serverCertificate });
      expect(await negotiatedProtocol(port, serverCertificate.cert, ['h2', 'sunrpc'])).toBe('sunrpc');
      expect(await negotiatedProtocol(port, serverCertificate.cert, undefined)).toBe(false);
      await expect(negotiatedProtocol(port, serverCertificate.cert, ['h2'])).rejects.toThrow(
        /no application protocol/i,
      );
    });
  });
});
