import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { endpointSlices } from '#wire/kube/resources.ts';
import type { EndpointSlice } from '#wire/kube/types.ts';
import { maintainLeaderSlice, removeLeaderSlice } from './endpoint-slice.ts';

const namespace = 'stowage-system';
const clock = systemClock();
const { signal } = new AbortController();
const path = `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`;

let api: FakeKubeApi;
let client: KubeClient;

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock, userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  // The address type of an EndpointSlice is immutable.
  const types = new Map<string, string>();
  api.intercept = ({ method }, response, body) => {
    const known = method === 'PUT' ? types.get('now') : undefined;
    const { addressType = '' } = method === 'PUT' || method === 'POST' ? (JSON.parse(body) as EndpointSlice) : {};
    if (method === 'POST') types.set('now', addressType);
    if (known === undefined || known === addressType) return false;
    api.refuse(response, 422, 'Invalid');
    return true;
  };
});

const optionsFor = (address: string) => ({ client, clock, namespace, address, port: 8443 });
const scope = (): Scope => ({ signal, log: silentLog() });
function start(address: string): () => Promise<void> {
  const stopping = new AbortController();
  const running = maintainLeaderSlice(optionsFor(address), { signal: stopping.signal, log: silentLog() });
  const stop = (): Promise<void> => {
    stopping.abort();
    return running;
  };
  onTestFinished(stop);
  return stop;
}
const readSlice = (): Promise<EndpointSlice | undefined> =>
  client.get(endpointSlices, { namespace, name: 'stowage-leader' }, signal).catch(() => undefined);
const publishedAddresses = async (): Promise<readonly string[]> =>
  (await readSlice())?.endpoints?.flatMap((one) => one.addresses) ?? [];

describe('the address of the leader', () => {
  test.each([
    ['10.0.0.5', 'IPv4'],
    ['fd00::5', 'IPv6'],
  ])('%s is published for the Service', async (address, addressType) => {
    start(address);
    await eventually(readSlice).toMatchObject({
      metadata: {
        labels: {
          'kubernetes.io/service-name': 'stowage',
          'endpointslice.kubernetes.io/managed-by': 'stowage.dev',
        },
      },
      addressType,
      endpoints: [{ addresses: [address], conditions: { ready: true } }],
      ports: [{ name: 'https', port: 8443, protocol: 'TCP' }],
    });
  });

  test.each(['10.0.0.6', 'fd00::6'])('is replaced by the address of the next leader: %s', async (next) => {
    const stop = start('10.0.0.5');
    await eventually(publishedAddresses).toEqual(['10.0.0.5']);
    await stop();
    start(next);
    await eventually(publishedAddresses).toEqual([next]);
  });

  test('is restored when a user changes or deletes it', async () => {
    start('10.0.0.5');
    await eventually(publishedAddresses).toEqual(['10.0.0.5']);
    const found = await readSlice();
    for (const empty of [[], null]) {
      // The API server may return an empty list as null.
      api.put(path, { ...found, metadata: { name: 'stowage-leader' }, endpoints: empty, ports: empty } as never);
      await eventually(publishedAddresses).toEqual(['10.0.0.5']);
    }
    expect((await readSlice())?.metadata.labels).toMatchObject({ 'kubernetes.io/service-name': 'stowage' });
    api.remove(path, 'stowage-leader');
    await eventually(publishedAddresses).toEqual(['10.0.0.5']);
  });

  test('is not written again if it is already published', async () => {
    const stop = start('10.0.0.5');
    await eventually(publishedAddresses).toEqual(['10.0.0.5']);
    await stop();
    start('10.0.0.5');
    await eventually(() => api.watches).toBe(1);
    expect(api.requests.filter((one) => !one.startsWith('GET'))).toEqual([`POST ${path}`]);
  });

  test('is removed before an orderly shutdown, unless it is the address of another process', async () => {
    const stop = start('10.0.0.5');
    await eventually(publishedAddresses).toEqual(['10.0.0.5']);
    await stop();
    await removeLeaderSlice(optionsFor('10.0.0.9'), scope());
    expect(await publishedAddresses()).toEqual(['10.0.0.5']);
    await removeLeaderSlice(optionsFor('10.0.0.5'), scope());
    expect(await readSlice()).toBeUndefined();
    await removeLeaderSlice(optionsFor('10.0.0.5'), scope());
  });
});
