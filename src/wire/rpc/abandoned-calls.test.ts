import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { createRpcClient, type RpcClientOptions } from './client.ts';
import type { Procedure } from './procedure.ts';
import { createRpcServer, type RpcServerOptions } from './server.ts';

const program = 200_000;
const padding = Buffer.alloc(2_000);

/** A small call that the sender copies. */
const noteCall: Procedure<number, undefined> = {
  program,
  version: 1,
  number: 1,
  name: 'NOTE',
  encode: (writer, value) => {
    writer.u32(value).fixedOpaque(padding);
    return undefined;
  },
  decode: () => undefined,
};

interface BufferedBytes {
  readonly receivedBytes: number;
  readonly unsentBytes: number;
}

interface FreezableProxy {
  readonly port: number;
  /** The proxy stops reading, like a frozen machine. */
  freeze(): void;
  /** The client's bytes that have arrived at the proxy, and the bytes that the client's kernel has not sent. */
  bufferedBytes(): BufferedBytes;
  /** Reads again, and returns the number of bytes that arrive before the connection ends. */
  thaw(): Promise<number>;
}

/** Starts a proxy between a client and a server. */
async function startProxy(serverPort: number): Promise<FreezableProxy> {
  const sockets: Socket[] = [];
  let forwardedBytes = 0;
  let isFrozen = false;
  const listener = createServer((client) => {
    sockets.push(client);
    client.on('error', () => undefined);
    if (isFrozen) return;
    const server = connect(serverPort, '127.0.0.1');
    sockets.push(server);
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      one.on('error', () => undefined).on('close', () => other.destroy());
      one.on('data', (chunk: Buffer) => {
        if (one === client) forwardedBytes += chunk.length;
        other.write(chunk);
      });
    }
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  onTestFinished(() => {
    listener.close();
    for (const socket of sockets) socket.destroy();
  });
  const first = (): Socket => sockets[0] as Socket;
  const { port } = listener.address() as AddressInfo;
  let clientPort = 0;
  return {
    port,
    freeze: () => {
      isFrozen = true;
      clientPort = first().remotePort ?? 0;
      first().pause();
    },
    bufferedBytes: () => ({
      receivedBytes: queues(port, clientPort).received + first().readableLength,
      unsentBytes: queues(clientPort, port).unsent,
    }),
    thaw: async () => {
      const before = forwardedBytes;
      const { promise: ended, resolve } = Promise.withResolvers<unknown>();
      first().once('close', resolve).resume();
      await ended;
      return forwardedBytes - before;
    },
  };
}

/** Returns the queue lengths of a local connection: `tx_queue` and `rx_queue` of /proc/net/tcp. */
function queues(local: number, remote: number): { readonly unsent: number; readonly received: number } {
  const hex = (port: number): string => port.toString(16).toUpperCase().padStart(4, '0');
  const addressPair = `0100007F:${hex(local)} 0100007F:${hex(remote)}`;
  const line = readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .find((candidate) => candidate.includes(addressPair));
  const [, unsent = '0', received = '0'] = / ([0-9A-F]{8}):([0-9A-F]{8}) /.exec(line ?? '') ?? [];
  return { unsent: Number.parseInt(unsent, 16), received: Number.parseInt(received, 16) };
}

async function startServer(
  tls?: RpcServerOptions['tls'],
): Promise<{ readonly port: number; readonly executed: number[] }> {
  const executed: number[] = [];
  const answer = (): undefined => undefined;
  const procedure = {
    name: 'NOTE',
    handle: (reader: { u32(): number }) => {
      executed.push(reader.u32());
      return answer;
    },
  };
  const server = createRpcServer({
    programs: [{ number: program, version: 1, procedures: new Map([[1, procedure]]) }],
    tls,
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  return { port: (server.address() as AddressInfo).port, executed };
}

/** Enough calls to fill the kernel buffers of a connection that the peer does not read. */
const callCount = 1_000;

async function abandonCalls(
  proxy: FreezableProxy,
  options: Partial<RpcClientOptions>,
  end: 'stall' | 'close',
): Promise<BufferedBytes> {
  const stallMs = end === 'stall' ? 100 : 60_000;
  const rpc = createRpcClient({
    clock: systemClock(),
    addresses: [{ host: '127.0.0.1', port: proxy.port }],
    stallMs,
    ...options,
  });
  onTestFinished(() => rpc.close());
  await rpc.call(noteCall, 0);
  proxy.freeze();
  const calls = Array.from({ length: callCount }, (_, i) => rpc.call(noteCall, i + 1, { deadlineMs: 800 }));
  const settled = Promise.allSettled(calls);
  await expect.poll(() => proxy.bufferedBytes().unsentBytes).toBeGreaterThan(1_000_000);
  const bufferedBytes = proxy.bufferedBytes();
  for (const { status } of await settled) expect(status).toBe('rejected');
  if (end === 'close') rpc.close();
  return bufferedBytes;
}

describe.skipIf(lacks('linux', 'openssl'))(
  'calls that were abandoned while the server did not read are not sent later by the kernel',
  () => {
    test.each([
      ['if the client resets the stalled connection', false, 'stall'],
      ['if the client resets the stalled connection, with TLS', true, 'stall'],
      ['if the client is closed', false, 'close'],
      ['if the client is closed, with TLS', true, 'close'],
    ] as const)('%s', async (_what, isEncrypted, end) => {
      const { key, cert } = certificate('server');
      const { port, executed } = await startServer(isEncrypted ? { key, cert } : undefined);
      const proxy = await startProxy(port);
      const tls = isEncrypted ? { options: { ca: cert }, program, version: 1 } : undefined;
      const { receivedBytes, unsentBytes } = await abandonCalls(proxy, { tls }, end);
      // Bytes that have arrived cannot be taken back, and a few may arrive later. The rest is not sent.
      expect(await proxy.thaw()).toBeLessThan(receivedBytes + unsentBytes / 2);
      expect(executed.length).toBeLessThan(callCount / 2);
    });
  },
);
