import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { describe, expect, onTestFinished, test } from 'vitest';
import { serveHealth } from './health.ts';
import { listenPlace } from './leader-server.ts';
import { everywhere, listenTcp, parseListen } from './listen.ts';

/** 127.0.0.1, and ::1 where there is IPv6. */
const loopback = Object.values(networkInterfaces())
  .flatMap((all) => all ?? [])
  .filter(({ internal }) => internal)
  .map(({ address, family }) => (family === 'IPv6' ? `[${address}]` : address));

describe('without a host, an address', () => {
  test.each([
    [':8443', { host: everywhere, port: 8443 }],
    ['8443', { host: '127.0.0.1', port: 8443 }],
    ['0.0.0.0:8443', { host: '0.0.0.0', port: 8443 }],
    ['none', undefined],
  ])('is every one that there is, if that is meant: %s', (text, at) => {
    expect(parseListen(text, everywhere)).toEqual(at);
  });

  test('is nobody else’s but this machine’s, otherwise', () => {
    expect(parseListen(':8443')).toEqual({ host: '127.0.0.1', port: 8443 });
  });

  test('is where the door of a pod is, whatever kind of address that has', () => {
    for (const address of ['10.0.0.5', 'fd00::5'])
      expect(listenPlace(':8443', address, 'p')).toEqual({ host: everywhere, port: 8443, address, pod: 'p' });
    expect(() => listenPlace(':8443', undefined)).toThrow(expect.objectContaining({ reason: 'door-address-unknown' }));
  });
});

describe('who listens everywhere', () => {
  const asked = async (port: number, path: string): Promise<readonly string[]> =>
    await Promise.all(loopback.map(async (host) => await (await fetch(`http://${host}:${port}${path}`)).text()));

  test('is reached at addresses of every kind', async () => {
    expect(loopback).toContain('127.0.0.1');
    const server = createServer((_, response) => response.end('here'));
    onTestFinished(() => void server.close());
    const where = await listenTcp(server, { host: everywhere, port: 0 });
    const { port } = server.address() as AddressInfo;
    expect(where).toMatch(/^http:\/\/(\[::\]|0\.0\.0\.0):\d+$/);
    expect(await asked(port, '/')).toEqual(loopback.map(() => 'here'));
  });

  test('is told of when another has the port', async () => {
    const server = createServer();
    onTestFinished(() => void server.close());
    await listenTcp(server, { host: everywhere, port: 0 });
    const { port } = server.address() as AddressInfo;
    const second = listenTcp(createServer(), { host: everywhere, port });
    await expect(second).rejects.toMatchObject({
      reason: 'port-in-use',
      message: `cannot listen on port ${port}, at any address: the port is in use`,
    });
  });

  test('shows probes how it is', async () => {
    await using health = await serveHealth(
      ':0',
      () => undefined,
      () => undefined,
    );
    const port = Number(new URL(health.address ?? '').port);
    expect(await asked(port, '/readyz')).toEqual(loopback.map(() => 'ok\n'));
  });
});
