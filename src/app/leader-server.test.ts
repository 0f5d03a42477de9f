import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { leaderServers, testNamespace as namespace, scopeOf } from '#testing/leader-servers.ts';
import { endpointSlices, secrets } from '#wire/kube/resources.ts';
import { createLeaderServer, type ListenAddress, listenAddress } from './leader-server.ts';

const servers = leaderServers();
const { signal } = new AbortController();
const slice = () =>
  servers.client.get(endpointSlices, { namespace, name: 'stowage-leader' }, signal).catch(() => 'there is none');
const anyPort: ListenAddress = { host: '127.0.0.1', port: 0, address: '127.0.0.1', pod: 'controller-1' };
const opened = (place: ListenAddress | undefined) =>
  createLeaderServer(
    { client: servers.client, clock: systemClock(), namespace, listenOn: place },
    { log: silentLog() },
  );

describe('the announced address', () => {
  test.each([
    [undefined, '10.0.0.5', undefined],
    ['none', undefined, undefined],
    ['0.0.0.0:8443', '10.0.0.5', { host: '0.0.0.0', port: 8443, address: '10.0.0.5', pod: 'p' }],
    ['[::]:8443', 'fd00::5', { host: '::', port: 8443, address: 'fd00::5', pod: 'p' }],
    ['10.0.0.7:8443', undefined, { host: '10.0.0.7', port: 8443, address: '10.0.0.7', pod: 'p' }],
    ['10.0.0.7:8443', '', { host: '10.0.0.7', port: 8443, address: '10.0.0.7', pod: 'p' }],
  ])('comes from --listen %s and POD_IP %s', (listen, podIp, place) => {
    expect(listenAddress(listen, podIp, 'p')).toEqual(place);
  });

  test.each([
    ['0.0.0.0:8443', undefined],
    ['[::]:8443', ''],
    ['localhost:8443', undefined],
    ['10.0.0.7:8443', 'somewhere'],
  ])('cannot be determined from --listen %s and POD_IP %s', (listen, podIp) => {
    expect(() => listenAddress(listen, podIp)).toThrow(
      expect.objectContaining({ reason: 'door-address-unknown', action: expect.stringContaining('POD_IP') }),
    );
  });
});

describe("the leader's server", () => {
  test('is found by agents, and withdraws its address when it stops', async () => {
    const stop = new AbortController();
    const leaderServer = opened(anyPort);
    const running = leaderServer.run(scopeOf(), stop.signal);
    const link = servers.connectAgent({ api: (_, response) => response.end('{"a":1}') });
    await eventually(() => leaderServer.agents.nodes()).toEqual(['node-1']);
    expect(await leaderServer.agents.call('node-1', { method: 'GET', path: '/v1/status' }, scopeOf())).toEqual({
      a: 1,
    });
    stop.abort();
    await running;
    expect([await slice(), leaderServer.agents.nodes()]).toEqual(['there is none', []]);
    await eventually(() => link.isConnected).toBe(false);
    // The next leader has the same certificate.
    const { data } = await servers.client.get(secrets, { namespace, name: 'stowage-tls' }, signal);
    const again = new AbortController();
    const next = opened(anyPort);
    const over = next.run(scopeOf(), again.signal);
    await eventually(() => next.agents.nodes()).toEqual(['node-1']);
    expect((await servers.client.get(secrets, { namespace, name: 'stowage-tls' }, signal)).data).toEqual(data);
    again.abort();
    await over;
  });

  test('leaves its address alone after it lost the Lease', async () => {
    const lost = new AbortController();
    const running = opened(anyPort).run(scopeOf(lost.signal), signal);
    await eventually(slice).toMatchObject({ endpoints: [{ addresses: ['127.0.0.1'] }] });
    lost.abort();
    await running;
    expect(await slice()).toMatchObject({ endpoints: [{ addresses: ['127.0.0.1'] }] });
  });

  test('ends if it is stopped before it has a certificate', async () => {
    servers.api.intercept = ({ url = '' }, response) => {
      if (!url.includes('/secrets')) return false;
      servers.api.refuse(response, 403, 'Forbidden');
      return true;
    };
    const stop = new AbortController();
    const running = opened(anyPort).run(scopeOf(), stop.signal);
    await eventually(() => servers.api.requests.filter((one) => one.includes('/secrets')).length).toBeGreaterThan(0);
    stop.abort();
    await running;
    expect(await slice()).toBe('there is none');
  });

  test('reports if it cannot listen', async () => {
    const taken = createServer().listen(0, '127.0.0.1');
    onTestFinished(() => void taken.close());
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    await expect(opened({ ...anyPort, port }).run(scopeOf(), signal)).rejects.toMatchObject({ reason: 'port-in-use' });
  });

  test('does not run unless configured', async () => {
    const leaderServer = opened(undefined);
    await leaderServer.run(scopeOf(), signal);
    expect([leaderServer.agents.nodes(), servers.api.requests]).toEqual([[], []]);
  });
});
