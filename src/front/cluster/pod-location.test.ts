import { expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { doors } from '#testing/door.ts';
import { locatePod } from './pod-location.ts';

const it = doors();
const scope = { signal: new AbortController().signal, log: silentLog() };
const put = (name: string, spec: object, status: object): unknown =>
  it.api.put('/api/v1/namespaces/team/pods', {
    metadata: { name, namespace: 'team', uid: `uid-${name}` },
    spec,
    status,
  } as never);
const locate = (name: string) => locatePod(it.client, systemClock(), { namespace: 'team', name }, scope);

test('says on which node a pod runs, and at which address', async () => {
  put('web', { nodeName: 'node-1' }, { phase: 'Running', podIP: '10.244.1.5' });
  expect(await locate('web')).toEqual({ uid: 'uid-web', node: 'node-1', address: '10.244.1.5' });
});

test('refuses a pod that does not exist, is not scheduled, has no address, or has ended', async () => {
  put('pending', {}, { phase: 'Pending' });
  put('starting', { nodeName: 'node-1' }, { phase: 'Pending' });
  put('job', { nodeName: 'node-1' }, { phase: 'Succeeded', podIP: '10.244.1.6' });
  put('failed', { nodeName: 'node-1' }, { phase: 'Failed', podIP: '10.244.1.7' });
  const reasons = { none: 'pod-unknown', pending: 'pod-without-address', starting: 'pod-without-address' };
  for (const [name, reason] of Object.entries({ ...reasons, job: 'pod-ended', failed: 'pod-ended' }))
    await expect(locate(name)).rejects.toMatchObject({ reason });
});

test('says so if Kubernetes does not answer', async () => {
  await it.api.down();
  await expect(locate('web')).rejects.toMatchObject({ code: 'unavailable', reason: 'pod-unasked' });
});
