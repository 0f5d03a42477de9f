import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { usedMemoryMib } from '#testing/memory.ts';
import { uint32s } from '#testing/rpc-records.ts';
import { createRpcServer, type RpcServerOptions } from './server.ts';

const program = 200_000;
const mib = 1024 * 1024;
/** NULL without credentials. */
const nullCall = uint32s(0x8000_0028, 7, 0, 2, program, 3, 0, 0, 0, 0, 0);
/** The TLS probe. */
const tlsProbe = uint32s(0x8000_0028, 7, 0, 2, program, 3, 0, 7, 0, 0, 0);

async function startServer(options: Partial<RpcServerOptions>) {
  const clock = createFakeClock();
  const errors: string[] = [];
  const procedures = new Map([[0, { name: 'NULL', handle: () => () => undefined }]]);
  const programs = [{ number: program, version: 3, procedures }];
  const server = createRpcServer({ programs, clock, onError: (what) => errors.push(what), ...options });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const sockets: Socket[] = [];
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const connected = async (from = '127.0.0.1'): Promise<Socket> => {
    const { port } = server.address() as AddressInfo;
    const socket = connect({ host: '127.0.0.1', port, localAddress: from, noDelay: true });
    sockets.push(socket);
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    return socket;
  };
  return { clock, errors, connected };
}

/** Sends a call and expects its reply, which shows that the server has read all earlier bytes. */
async function expectReply(socket: Socket, rest = nullCall): Promise<void> {
  socket.write(rest);
  const [answer] = (await once(socket, 'data')) as [Buffer];
  expect(answer.readUInt32BE(4)).toBe(7);
}

const hasClosed = async (socket: Socket): Promise<true> => {
  if (!socket.closed) await once(socket.resume(), 'close');
  return true;
};

/** Advances the clock in steps, so that the server can process socket events in between. */
async function advanceClock(clock: { advance(ms: number): void }, ms: number): Promise<void> {
  for (let at = 0; at < ms; at += 5_000) {
    clock.advance(5_000);
    await nextTurn();
  }
}

describe('a call that is received only in part', () => {
  test.each([
    ['its record mark', nullCall.subarray(0, 2)],
    ['its header', nullCall.subarray(0, 20)],
    ['one fragment of several', uint32s(4, 7)],
    ['the beginning of a long call', uint32s(0x8000_0000 | mib, 7, 0, 2)],
  ])('(%s) loses its connection when the rest does not arrive, and idle connections stay', async (_what, part) => {
    const { clock, errors, connected } = await startServer({});
    const [idle, partialClient] = [await connected(), await connected()];
    await expectReply(idle);
    await expectReply(partialClient);
    partialClient.write(part);
    await expectReply(idle);
    await advanceClock(clock, 55_000);
    expect([partialClient.closed, errors]).toEqual([false, []]);
    await advanceClock(clock, 20_000);
    expect(await hasClosed(partialClient)).toBe(true);
    expect(errors).toEqual(['the client did not complete a call in time']);
    await advanceClock(clock, 600_000);
    await expectReply(idle);
  });

  test('is dropped if its bytes arrive too slowly', async () => {
    const { clock, connected } = await startServer({});
    const [partialClient, other] = [await connected(), await connected()];
    await expectReply(partialClient);
    partialClient.write(uint32s(0x8000_0000 | mib));
    // The reply shows that the server has read the earlier bytes.
    await expectReply(other);
    for (let i = 0; i < 20 && !partialClient.closed; i++) {
      partialClient.write('x');
      clock.advance(5_000);
      await nextTurn();
    }
    expect(await hasClosed(partialClient)).toBe(true);
  });

  test('may follow another partial call any number of times if each completes in time', async () => {
    const { clock, connected } = await startServer({});
    const socket = await connected();
    socket.write(nullCall.subarray(0, 20));
    for (let i = 0; i < 20; i++) {
      await expectReply(socket, Buffer.concat([nullCall.subarray(20), nullCall.subarray(0, 20)]));
      await advanceClock(clock, 15_000);
    }
    await expectReply(socket, nullCall.subarray(20));
  });

  test('holds bounded memory together with others, and slow clients of other addresses are not evicted', async () => {
    const { connected, errors } = await startServer({ partialCalls: { bytes: 16 * mib } });
    const honest = await connected('127.0.0.2');
    const long = Buffer.concat([
      uint32s(0x8000_0000 | mib),
      nullCall.subarray(4),
      Buffer.alloc(mib + 4 - nullCall.length),
    ]);
    honest.write(long.subarray(0, mib / 2));
    const before = usedMemoryMib();
    const part = long.subarray(0, -1);
    const attackers = await Promise.all(Array.from({ length: 100 }, () => connected()));
    for (const socket of attackers) socket.write(part);
    const openAttackers = (): number => attackers.filter(({ closed }) => !closed).length;
    for (const socket of attackers) socket.resume();
    await expect.poll(openAttackers, { timeout: 10_000 }).toBeLessThan(16);
    expect(openAttackers()).toBeGreaterThan(8);
    // Each of the 100 connections itself takes a little less than half a MiB, which is freed when it is closed.
    await expect.poll(() => usedMemoryMib() - before).toBeLessThan(30);
    await expectReply(honest, long.subarray(mib / 2));
    expect(new Set(errors)).toEqual(new Set(['incomplete calls use too much memory']));
  });

  test('holds bounded memory together with others of any size', async () => {
    const { connected } = await startServer({ partialCalls: { bytes: 4 * mib } });
    const probe = await connected('127.0.0.2');
    const sendFromMany = (part: Buffer): Promise<readonly Socket[]> =>
      Promise.all(
        Array.from({ length: 40 }, async () => {
          const socket = await connected();
          socket.resume().write(part);
          return socket;
        }),
      );
    // The connections that have been idle longest hold very little memory.
    await sendFromMany(uint32s(4, 7));
    await expectReply(probe);
    const large = await sendFromMany(uint32s(0x8000_0000 | (2 * mib - 100)));
    const openAttackers = (): number => large.filter(({ closed }) => !closed).length;
    await expect.poll(openAttackers, { timeout: 10_000 }).toBeLessThanOrEqual(2);
    await expectReply(probe);
    expect(openAttackers()).toBeGreaterThan(0);
  });

  test.skipIf(lacks('openssl'))('is freed if it follows an accepted TLS probe', async () => {
    const { connected } = await startServer({ tls: certificate('server') });
    const before = usedMemoryMib();
    const sockets = await Promise.all(Array.from({ length: 128 }, () => connected()));
    const probes = sockets.map((socket) => expectReply(socket, Buffer.concat([tlsProbe, uint32s(0x8000_0000 | mib)])));
    await Promise.all(probes);
    await expect.poll(() => usedMemoryMib() - before).toBeLessThan(40);
    expect(sockets.filter(({ closed }) => closed)).toEqual([]);
  });

  describe('is still limited after a TLS probe', () => {
    async function expectDropped(
      { clock, errors }: Awaited<ReturnType<typeof startServer>>,
      socket: Socket,
    ): Promise<void> {
      await expectReply(socket, tlsProbe);
      // The server would answer the rest of the second call, too.
      await expectReply(socket, Buffer.concat([nullCall, nullCall.subarray(0, 20)]));
      await advanceClock(clock, 75_000);
      expect(errors).toEqual(['the client did not complete a call in time']);
      expect(await hasClosed(socket)).toBe(true);
    }

    test('on a server without TLS', async () => {
      const server = await startServer({});
      await expectDropped(server, await server.connected());
    });

    test.skipIf(lacks('openssl'))('on a connection that already uses TLS', async () => {
      const serverCertificate = certificate('server');
      const server = await startServer({ tls: serverCertificate });
      const plain = await server.connected();
      await expectReply(plain, tlsProbe);
      const secured = connectTls({
        socket: plain,
        ca: serverCertificate.cert,
        host: '127.0.0.1',
        ALPNProtocols: ['sunrpc'],
      });
      secured.on('error', () => undefined);
      await once(secured, 'secureConnect');
      await expectDropped(server, secured);
    });
  });
});
