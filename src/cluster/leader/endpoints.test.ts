import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { endpoints } from '#wire/kube/resources.ts';
import { type LeaderEndpointsOptions, maintainLeaderEndpoints, removeLeaderEndpoints } from './endpoints.ts';

let api: FakeKubeApi;
let client: KubeClient;
let ending: AbortController;
const path = '/api/v1/namespaces/storage/endpoints';
const { signal } = new AbortController();
const wait = { interval: 10, timeout: 20_000 };

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
  ending = new AbortController();
});

const optionsFor = (pod: string): LeaderEndpointsOptions => ({
  client,
  clock: systemClock(),
  namespace: 'storage',
  address: '10.0.0.5',
  port: 8443,
  pod,
});
const startMaintaining = (pod = 'controller-1'): void => {
  const maintaining = maintainLeaderEndpoints(optionsFor(pod), { signal: ending.signal, log: silentLog() });
  onTestFinished(async () => {
    ending.abort();
    await maintaining;
  });
};
const readEndpoints = () =>
  client.get(endpoints, { namespace: 'storage', name: 'stowage' }, signal).catch(() => undefined);
const publishedPod = async () => (await readEndpoints())?.subsets?.[0]?.addresses?.[0]?.targetRef?.name;

test('the Endpoints name the leader’s pod, as the API server’s proxy needs it', async () => {
  startMaintaining();
  await expect.poll(readEndpoints, wait).toMatchObject({
    metadata: { labels: { 'endpointslice.kubernetes.io/skip-mirror': 'true' } },
    subsets: [
      {
        addresses: [{ ip: '10.0.0.5', targetRef: { kind: 'Pod', namespace: 'storage', name: 'controller-1' } }],
        ports: [{ name: 'https', port: 8443, protocol: 'TCP' }],
      },
    ],
  });
});

test('the Endpoints replace the Endpoints of the previous leader, and are restored when a user changes them', async () => {
  api.put(path, { metadata: { name: 'stowage' }, subsets: [{ addresses: [{ ip: '10.0.0.4' }] }] } as never);
  startMaintaining();
  await expect.poll(publishedPod, wait).toBe('controller-1');
  api.remove(path, 'stowage');
  await expect.poll(publishedPod, wait).toBe('controller-1');
});

test('a process removes its own Endpoints when it ends, but not the Endpoints of the next leader', async () => {
  startMaintaining();
  await expect.poll(publishedPod, wait).toBe('controller-1');
  const scope = { signal, log: silentLog() };
  await removeLeaderEndpoints(optionsFor('controller-2'), scope);
  expect(await publishedPod()).toBe('controller-1');
  ending.abort();
  await removeLeaderEndpoints(optionsFor('controller-1'), scope);
  expect(await readEndpoints()).toBeUndefined();
  await removeLeaderEndpoints(optionsFor('controller-1'), scope);
});
