import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import type { AgentRequest } from './agents.ts';

const fixture = controllerFixture();
const putStore = (name: string): void =>
  void fixture.api.put(paths.stores, { metadata: { name }, spec: { uri: `local:///${name}` } });
const listedStore = (name: string, more: object = {}): object => ({
  name,
  kind: 'local',
  state: 'open',
  problem: null,
  access: ['filesystem'],
  volumes: 1,
  bytes: '600',
  ...more,
});
const answersWith =
  (stores: () => readonly object[]) =>
  ({ path }: AgentRequest): unknown => {
    if (path === '/v1/stores') return { items: [...stores(), listedStore('shared', { kind: 'nfs' })] };
    if (path.includes('silent'))
      return new StowageError('it hangs', { code: 'deadline', reason: 'deadline', action: '' });
    return { steps: [{ ok: true }], totalBytes: '4000', freeBytes: '2000' };
  };
const reportedStores = (node: string): unknown =>
  [...(fixture.parts.nodeStores.reportOf(node)?.stores.values() ?? [])].map(({ name, isOpen, freeBytes }) => [
    name,
    isOpen,
    freeBytes,
  ]);

const pollCount = (): number => fixture.agents.requests.filter((one) => one === 'node-1 GET /v1/stores').length;

test('nodes report their own stores: a hanging disk does not affect other stores, and limits bound the free space', async () => {
  for (const name of ['disks', 'bounded', 'full', 'silent']) putStore(name);
  const all = [
    listedStore('disks'),
    listedStore('bounded', { maxBytes: '1000' }),
    listedStore('full', { maxVolumes: 1 }),
    listedStore('silent'),
  ];
  fixture.agents.connect(
    'node-1',
    answersWith(() => all),
  );
  fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => reportedStores('node-1')).toEqual([
    ['disks', true, 2000n],
    ['bounded', true, 400n],
    ['full', true, 0n],
    ['silent', false, 0n],
  ]);
  for (const bytes of [1500n, 500n, -1500n]) fixture.parts.nodeStores.addPending('node-1', 'disks', bytes);
  expect(fixture.parts.nodeStores.pendingBytes('node-1', 'disks')).toBe(500n);
  expect(fixture.parts.nodeStores.pendingBytes('node-1', 'bounded')).toBe(0n);
  expect(fixture.parts.nodeStores.reportOf('node-1')?.stores.get('disks')?.freeBytes).toBe(2000n);
  fixture.parts.nodeStores.add('node-1');
  await eventually(() => fixture.parts.nodeStores.pendingBytes('node-1', 'disks')).toBe(0n);
  fixture.agents.disconnect('node-1');
  await eventually(() => [...fixture.parts.nodeStores.all()]).toEqual([]);
});

test('the agent is polled until it has a new store', async () => {
  let all: readonly object[] = [];
  fixture.agents.connect(
    'node-1',
    answersWith(() => all),
  );
  fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => fixture.parts.nodeStores.reportOf('node-1')).not.toBe(undefined);
  const before = pollCount();
  putStore('disks');
  await eventually(pollCount).toBeGreaterThan(before + 1);
  all = [listedStore('disks')];
  await eventually(() => reportedStores('node-1')).toEqual([['disks', true, 2000n]]);
});

test('reports about a store are dropped when its Store object moves it, and the agent is polled until it has applied the change', async () => {
  for (const name of ['disks', 'others']) putStore(name);
  let [identity, mayAnswer] = ['before', Promise.resolve()];
  const answer = answersWith(() => [listedStore('disks', { identity }), listedStore('others')]);
  fixture.agents.connect('node-1', async (request) => {
    await mayAnswer;
    return answer(request);
  });
  fixture.start(({ nodeStores }) => nodeStores);
  const reportedStoresByName = () => fixture.parts.nodeStores.reportOf('node-1')?.stores;
  await eventually(() => reportedStoresByName()?.get('disks')?.identity).toBe('before');
  const notified: unknown[] = [];
  fixture.parts.nodeStores.onChange(() => notified.push(reportedStoresByName()?.get('disks')?.identity));
  const gate = Promise.withResolvers<void>();
  mayAnswer = gate.promise;
  const spec = { uri: 'local:///disks' };
  fixture.api.put(paths.stores, {
    metadata: { name: 'others' },
    spec: { uri: 'local:///others' },
    status: { volumes: 7 },
  });
  fixture.api.put(paths.stores, { metadata: { name: 'disks' }, spec: { ...spec, options: { maxVolumes: '7' } } });
  await eventually(() => [...(reportedStoresByName()?.keys() ?? [])]).toEqual(['others']);
  expect(notified).toEqual([undefined]);
  gate.resolve();
  // The agent applies the change a moment later, and the controller polls it in between.
  await eventually(pollCount).toBeGreaterThan(3);
  expect(reportedStoresByName()?.get('disks')?.identity).toBe('before');
  // Whether the agent has applied the change need not show in its report, so waiting claims have to retry.
  expect(notified.length).toBeGreaterThan(2);
  identity = 'after';
  await eventually(() => reportedStoresByName()?.get('disks')?.identity).toBe('after');
});

test('a poll without a change causes no notification', async () => {
  putStore('disks');
  let volumes = 1;
  fixture.agents.connect(
    'node-1',
    answersWith(() => [listedStore('disks', { volumes })]),
  );
  const notifications: unknown[] = [];
  fixture.parts.nodeStores.onChange((node, before) => notifications.push([node, before?.stores.get('disks')?.volumes]));
  const stores = fixture.start(({ nodeStores }) => nodeStores);
  const poll = async (): Promise<void> => {
    const { again } = stores.counts();
    stores.add('node-1');
    await eventually(() => stores.counts().again).toBe(again + 1);
  };
  await eventually(() => notifications).toEqual([['node-1', undefined]]);
  await eventually(() => stores.counts()).toMatchObject({ waiting: 0, running: 0 });
  for (const volumeCount of [1, 1, 2, 2]) {
    volumes = volumeCount;
    await poll();
  }
  fixture.agents.disconnect('node-1');
  await eventually(() => stores.reportOf('node-1')).toBe(undefined);
  expect(notifications).toEqual([
    ['node-1', undefined],
    ['node-1', 1],
    ['node-1', 2],
  ]);
});

test.each<[string, () => readonly object[]]>([
  ['stores without a Store object', () => Array.from({ length: 900 }, (_, at) => listedStore(`made-up-${at}`))],
  ['one store many times', () => Array.from({ length: 900 }, () => listedStore('disks'))],
])('an agent that lists %s causes no additional checks', async (_, otherStores) => {
  putStore('disks');
  const answer = answersWith(() => [listedStore('disks'), ...otherStores()]);
  fixture.agents.connect('node-1', answer);
  fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => reportedStores('node-1')).toEqual([['disks', true, 2000n]]);
  expect(fixture.agents.requests.filter((one) => one.includes('/check'))).toEqual([
    'node-1 POST /v1/stores/disks/check',
  ]);
});

test('an agent that lists more stores than any cluster has is refused', async () => {
  putStore('disks');
  fixture.agents.connect(
    'node-1',
    answersWith(() => Array.from({ length: 10_001 }, () => listedStore('disks'))),
  );
  const stores = fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => stores.counts().retried).toBeGreaterThan(0);
  expect(stores.reportOf('node-1')).toBe(undefined);
});

test('the problem text of an agent is truncated', async () => {
  putStore('disks');
  const long = 'x'.repeat(100_000);
  fixture.agents.connect('node-1', ({ path }) =>
    path === '/v1/stores' ? { items: [listedStore('disks')] } : { steps: [{ ok: false, detail: long, action: long }] },
  );
  fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => fixture.parts.nodeStores.reportOf('node-1')?.stores.get('disks')?.problem?.length).toBe(1_024);
});

test('only a few stores of a node are checked concurrently', async () => {
  const names = Array.from({ length: 12 }, (_, at) => `disk-${at}`);
  for (const name of names) putStore(name);
  let [openChecks, maxOpenChecks] = [0, 0];
  fixture.agents.connect('node-1', async (request) => {
    if (!request.path.endsWith('/check')) return answersWith(() => names.map((name) => listedStore(name)))(request);
    openChecks++;
    maxOpenChecks = Math.max(maxOpenChecks, openChecks);
    await setImmediate();
    openChecks--;
    return { steps: [{ ok: true }], totalBytes: '1', freeBytes: '1' };
  });
  fixture.start(({ nodeStores }) => nodeStores);
  await eventually(() => fixture.parts.nodeStores.reportOf('node-1')?.stores.size).toBe(12);
  expect(maxOpenChecks).toBe(4);
});
