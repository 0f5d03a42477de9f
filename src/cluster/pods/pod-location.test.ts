import { beforeEach, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { leaderServers } from '#testing/leader-servers.ts';
import { locatePod } from './pod-location.ts';

const servers = leaderServers();
let warnings: string[];
const scope = {
  signal: new AbortController().signal,
  log: { ...silentLog(), warn: (message: string) => void warnings.push(message) },
};
beforeEach(() => {
  warnings = [];
});
const putPod = (name: string, spec: object, status: object, more: object = {}): unknown =>
  servers.api.put('/api/v1/namespaces/team/pods', {
    metadata: { name, namespace: 'team', uid: `uid-${name}`, ...more },
    spec,
    status,
  } as never);
const locate = (name: string) => locatePod(servers.client, systemClock(), { namespace: 'team', name }, scope);

test('the location of a pod has its node and its address', async () => {
  putPod('web', { nodeName: 'node-1' }, { phase: 'Running', podIP: '10.244.1.5' });
  expect(await locate('web')).toEqual({
    uid: 'uid-web',
    node: 'node-1',
    address: '10.244.1.5',
    hostNetwork: false,
  });
});

test('the location says whether a pod uses the network of its node', async () => {
  putPod('proxy', { nodeName: 'node-1', hostNetwork: true }, { phase: 'Running', podIP: '192.0.2.7' });
  expect(await locate('proxy')).toMatchObject({ address: '192.0.2.7', hostNetwork: true });
});

test('a pod that does not exist has no location', async () => {
  expect(await locate('none')).toBeUndefined();
});

test('a pod that is not scheduled, has no address, has ended, or is being deleted is refused', async () => {
  putPod('pending', {}, { phase: 'Pending' });
  putPod('starting', { nodeName: 'node-1' }, { phase: 'Pending' });
  putPod('job', { nodeName: 'node-1' }, { phase: 'Succeeded', podIP: '10.244.1.6' });
  putPod('failed', { nodeName: 'node-1' }, { phase: 'Failed', podIP: '10.244.1.7' });
  const deletionTimestamp = '2026-01-01T00:00:00Z';
  putPod('leaving', { nodeName: 'node-1' }, { phase: 'Running', podIP: '10.244.1.8' }, { deletionTimestamp });
  const reasons = { leaving: 'pod-ending', pending: 'pod-without-address', starting: 'pod-without-address' };
  for (const [name, reason] of Object.entries({ ...reasons, job: 'pod-ended', failed: 'pod-ended' }))
    await expect(locate(name)).rejects.toMatchObject({ reason });
});

test('a request that Kubernetes does not answer causes an error, and a warning in the log', async () => {
  await servers.api.down();
  await expect(locate('web')).rejects.toMatchObject({ code: 'unavailable', reason: 'pod-unasked' });
  expect(warnings).toEqual(['the controller could not get a pod from Kubernetes']);
});
