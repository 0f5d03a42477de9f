import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { type ConnectionFault, type FaultProxy, startFaultProxy } from '#testing/fault-proxy.ts';
import { createRpcClient, type RpcClient, type RpcClientOptions } from './client.ts';
import type { Procedure } from './procedure.ts';
import { createRpcServer, type RpcServerOptions } from './server.ts';

const program = 200_000;
const slow: Procedure<number, number> = {
  program,
  version: 3,
  number: 1,
  name: 'SLOW',
  encode: (writer, value) => {
    writer.u32(value);
    return undefined;
  },
  decode: (reader) => reader.u32(),
};

const faults: readonly ConnectionFault[] = [
  'closes',
  'resets',
  'says nothing',
  'closes in the handshake',
  'resets in the handshake',
  'says nothing in the handshake',
];

describe.skipIf(lacks('openssl'))('a server with TLS that is unavailable for a while', () => {
  const serverCertificate = certificate('server');

  interface ProxiedServer {
    readonly proxy: FaultProxy;
    /** The arguments of the calls that the server received. */
    readonly received: readonly number[];
    /** The server answers no call before this. */
    answer(): void;
    rpc(options?: Partial<RpcClientOptions>): RpcClient;
  }

  /** A server that echoes each call's argument, but only after `answer()`. */
  async function serve(options: Partial<RpcServerOptions> = {}): Promise<ProxiedServer> {
    const received: number[] = [];
    const { promise: released, resolve: answer } = Promise.withResolvers<void>();
    const handle = async (reader: { u32(): number }) => {
      const value = reader.u32();
      received.push(value);
      await released;
      return (writer: { u32(value: number): unknown }) => void writer.u32(value) as undefined;
    };
    const procedures = new Map([[1, { name: 'SLOW', handle }]]);
    const server = createRpcServer({ programs: [{ number: program, version: 3, procedures }], ...options });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    onTestFinished(() => void server.close());
    const proxy = await startFaultProxy({ host: '127.0.0.1', port: (server.address() as AddressInfo).port });
    const rpc = (more: Partial<RpcClientOptions> = {}): RpcClient => {
      const tls = { options: { ca: serverCertificate.cert }, program, version: 3 };
      const client = createRpcClient({ clock: systemClock(), addresses: [proxy], tls, dialMs: 2_000, ...more });
      onTestFinished(() => client.close());
      return client;
    };
    return { proxy, received, answer, rpc };
  }

  const withoutDeadline = { deadlineMs: Number.POSITIVE_INFINITY };

  test.each(faults)('and is replaced by one that %s: sent calls are resent', async (fault) => {
    const { proxy, received, answer, rpc } = await serve({ tls: serverCertificate });
    const pendingCall = rpc().call(slow, 7, withoutDeadline);
    await expect.poll(() => received, { timeout: 10_000 }).toEqual([7]);
    proxy.fault = fault;
    proxy.cut();
    await expect.poll(() => proxy.connections, { timeout: 30_000 }).toBeGreaterThan(3);
    answer();
    proxy.fault = 'passes';
    expect(await pendingCall).toBe(7);
  });

  test.each(faults)('and is replaced by one that %s: calls that were not sent may be retried', async (fault) => {
    const { proxy, answer, rpc } = await serve({ tls: serverCertificate });
    proxy.fault = fault;
    const client = rpc({ dialRounds: 2 });
    await expect(client.call(slow, 7, withoutDeadline)).rejects.toMatchObject({
      failure: 'unreachable',
      maybeDone: false,
    });
    expect(proxy.connections).toBe(2);
    answer();
    proxy.fault = 'passes';
    expect(await client.call(slow, 7, withoutDeadline)).toBe(7);
  });

  test('and refuses connections: calls are retried as well', async () => {
    const connect: RpcClientOptions['connect'] = ({ signal }) =>
      new Promise((_, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
      });
    const { rpc } = await serve();
    const client = rpc({ connect, tls: undefined, dialMs: 50, dialRounds: 2 });
    await expect(client.call(slow, 7, withoutDeadline)).rejects.toMatchObject({
      failure: 'unreachable',
      maybeDone: false,
    });
  });

  test('and supports only older versions of TLS: calls fail at once', async () => {
    const { proxy, rpc } = await serve({ tls: { ...serverCertificate, maxVersion: 'TLSv1.2' } });
    await expect(rpc().call(slow, 7, withoutDeadline)).rejects.toMatchObject({ failure: 'tls' });
    expect(proxy.connections).toBe(1);
  });

  test.each([
    ['with a self-signed certificate', 'self-signed certificate', { tls: certificate('other') }],
    ['without TLS', 'the server does not offer TLS', {}],
  ])('and comes back %s: all calls fail at once, also calls that were sent', async (_how, why, options) => {
    const { proxy, received, rpc } = await serve({ tls: serverCertificate });
    const other = await serve(options);
    const client = rpc({ addresses: [proxy] });
    const pendingCall = client.call(slow, 7, withoutDeadline);
    await expect.poll(() => received, { timeout: 10_000 }).toEqual([7]);
    proxy.leadTo(other.proxy);
    proxy.cut();
    await expect(pendingCall).rejects.toMatchObject({ failure: 'tls', maybeDone: true });
    const unsent = await client.call(slow, 8, withoutDeadline).catch((cause: unknown) => cause);
    expect(unsent).toMatchObject({ failure: 'tls', maybeDone: false });
    expect(causes(unsent)).toContain(why);
    expect(other.proxy.connections).toBe(2);
  });

  describe('that requires a client certificate', () => {
    const clock = systemClock();
    const fastClock: Clock = { ...clock, sleep: (ms, signal) => clock.sleep(ms / 100, signal) };
    const requireClientCertificate = { requestCert: true, rejectUnauthorized: true, ca: serverCertificate.cert };
    const untrustedOptions = { ca: serverCertificate.cert, ...certificate('stranger') };

    test('and rejects a client without one: calls fail at once, also without a deadline', async () => {
      const { proxy, rpc } = await serve({ tls: { ...serverCertificate, ...requireClientCertificate } });
      await expect(rpc().call(slow, 7, withoutDeadline)).rejects.toMatchObject({ failure: 'tls', maybeDone: false });
      expect(proxy.connections).toBe(1);
    });

    test('and closes connections without an alert: calls fail after a while', async () => {
      const { proxy, rpc } = await serve({ tls: { ...serverCertificate, ...requireClientCertificate } });
      const client = rpc({ clock: fastClock, tls: { options: untrustedOptions, program, version: 3 } });
      const thrown = await client.call(slow, 7, withoutDeadline).catch((cause: unknown) => cause);
      expect(thrown).toMatchObject({ failure: 'tls', maybeDone: true });
      expect(causes(thrown)).toContain('may reject the certificate of this client');
      expect(proxy.connections).toBe(14);
      // Later calls fail at the next closed connection.
      await expect(client.call(slow, 8, withoutDeadline)).rejects.toMatchObject({ failure: 'tls' });
      expect(proxy.connections).toBe(15);
    });
  });
});

const causes = (thrown: unknown): string =>
  thrown instanceof Error ? `${thrown.message} ${causes(thrown.cause)}` : '';
