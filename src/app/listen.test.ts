import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { describe, expect, onTestFinished, test } from 'vitest';
import { serveHealth } from './health.ts';
import { listenAddress } from './leader-server.ts';
import { allAddresses, listenTcp, parseListen } from './listen.ts';

/** 127.0.0.1, and ::1 if there is IPv6. */
const loopback = Object.values(networkInterfaces())
  .flatMap((all) => all ?? [])
  .filter(({ internal }) => internal)
  .map(({ address, family }) => (family === 'IPv6' ? `[${address}]` : address));

describe('an address without a host', () => {
  test.each([
    [':8443', { host: allAddresses, port: 8443 }],
    ['8443', { host: '127.0.0.1', port: 8443 }],
    ['0.0.0.0:8443', { host: '0.0.0.0', port: 8443 }],
    ['none', undefined],
  ])('means all addresses if the caller says so: %s', (text, at) => {
    expect(parseListen(text, allAddresses)).toEqual(at);
  });

  test('is by default reachable from this machine only', () => {
    expect(parseListen(':8443')).toEqual({ host: '127.0.0.1', port: 8443 });
  });

  test("is that of a pod's server, with any address family", () => {
    for (const address of ['10.0.0.5', 'fd00::5'])
      expect(listenAddress(':8443', address, 'p')).toEqual({ host: allAddresses, port: 8443, address, pod: 'p' });
    expect(() => listenAddress(':8443', undefined)).toThrow(
      expect.objectContaining({ reason: 'door-address-unknown' }),
    );
  });
});

describe('a server that listens on all addresses', () => {
  const asked = async (port: number, path: string): Promise<readonly string[]> =>
    await Promise.all(loopback.map(async (host) => await (await fetch(`http://${host}:${port}${path}`)).text()));

  test('is reachable at addresses of all families', async () => {
    expect(loopback).toContain('127.0.0.1');
    const server = createServer((_, response) => response.end('here'));
    onTestFinished(() => void server.close());
    const where = await listenTcp(server, { host: allAddresses, port: 0 });
    const { port } = server.address() as AddressInfo;
    expect(where).toMatch(/^http:\/\/(\[::\]|0\.0\.0\.0):\d+$/);
    expect(await asked(port, '/')).toEqual(loopback.map(() => 'here'));
  });

  test('reports if the port is in use', async () => {
    const server = createServer();
    onTestFinished(() => void server.close());
    await listenTcp(server, { host: allAddresses, port: 0 });
    const { port } = server.address() as AddressInfo;
    const second = listenTcp(createServer(), { host: allAddresses, port });
    await expect(second).rejects.toMatchObject({
      reason: 'port-in-use',
      message: `cannot listen on port ${port} on all addresses: the port is in use`,
    });
  });

  test('answers probes', async () => {
    await using health = await serveHealth(
      ':0',
      () => undefined,
      () => undefined,
    );
    const port = Number(new URL(health.address ?? '').port);
    expect(await asked(port, '/readyz')).toEqual(loopback.map(() => 'ok\n'));
  });
});
