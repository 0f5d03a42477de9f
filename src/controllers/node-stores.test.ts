import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import type { AgentRequest } from './agents.ts';

const it = controllerFixture();
const aStore = (name: string): void =>
  void it.api.put(paths.stores, { metadata: { name }, spec: { uri: `local:///${name}` } });
const listed = (name: string, more: object = {}): object => ({
  name,
  kind: 'local',
  state: 'open',
  problem: null,
  access: ['filesystem'],
  volumes: 1,
  bytes: '600',
  ...more,
});
const answering =
  (stores: () => readonly object[]) =>
  ({ path }: AgentRequest): unknown => {
    if (path === '/v1/stores') return { items: [...stores(), listed('shared', { kind: 'nfs' })] };
    if (path.includes('silent'))
      return new StowageError('it hangs', { code: 'deadline', reason: 'deadline', action: '' });
    return { steps: [{ ok: true }], totalBytes: '4000', freeBytes: '2000' };
  };
const seen = (node: string): unknown =>
  [...(it.parts.nodeStores.reportOf(node)?.stores.values() ?? [])].map(({ name, isOpen, freeBytes }) => [
    name,
    isOpen,
    freeBytes,
  ]);

const asked = (): number => it.agents.requests.filter((one) => one === 'node-1 GET /v1/stores').length;

test('nodes report their own stores: a hanging disk does not affect others, and limits count', async () => {
  for (const name of ['disks', 'bounded', 'full', 'silent']) aStore(name);
  const all = [
    listed('disks'),
    listed('bounded', { maxBytes: '1000' }),
    listed('full', { maxVolumes: 1 }),
    listed('silent'),
  ];
  it.agents.connect(
    'node-1',
    answering(() => all),
  );
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => seen('node-1')).toEqual([
    ['disks', true, 2000n],
    ['bounded', true, 400n],
    ['full', true, 0n],
    ['silent', false, 0n],
  ]);
  for (const bytes of [1500n, 500n, -1500n]) it.parts.nodeStores.addPending('node-1', 'disks', bytes);
  expect(it.parts.nodeStores.pendingBytes('node-1', 'disks')).toBe(500n);
  expect(it.parts.nodeStores.pendingBytes('node-1', 'bounded')).toBe(0n);
  expect(it.parts.nodeStores.reportOf('node-1')?.stores.get('disks')?.freeBytes).toBe(2000n);
  it.parts.nodeStores.add('node-1');
  await eventually(() => it.parts.nodeStores.pendingBytes('node-1', 'disks')).toBe(0n);
  it.agents.lose('node-1');
  await eventually(() => [...it.parts.nodeStores.all()]).toEqual([]);
});

test('a new store is polled until the agent has it', async () => {
  let all: readonly object[] = [];
  it.agents.connect(
    'node-1',
    answering(() => all),
  );
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => it.parts.nodeStores.reportOf('node-1')).not.toBe(undefined);
  const before = asked();
  aStore('disks');
  await eventually(asked).toBeGreaterThan(before + 1);
  all = [listed('disks')];
  await eventually(() => seen('node-1')).toEqual([['disks', true, 2000n]]);
});

test('reports about a store are dropped when its Store object moves it, and the agent is polled until it has applied the change', async () => {
  for (const name of ['disks', 'others']) aStore(name);
  let [identity, mayAnswer] = ['before', Promise.resolve()];
  const answer = answering(() => [listed('disks', { identity }), listed('others')]);
  it.agents.connect('node-1', async (request) => {
    await mayAnswer;
    return answer(request);
  });
  it.start(({ nodeStores }) => nodeStores);
  const view = () => it.parts.nodeStores.reportOf('node-1')?.stores;
  await eventually(() => view()?.get('disks')?.identity).toBe('before');
  const notified: unknown[] = [];
  it.parts.nodeStores.onChange(() => notified.push(view()?.get('disks')?.identity));
  const gate = Promise.withResolvers<void>();
  mayAnswer = gate.promise;
  const spec = { uri: 'local:///disks' };
  it.api.put(paths.stores, { metadata: { name: 'others' }, spec: { uri: 'local:///others' }, status: { volumes: 7 } });
  it.api.put(paths.stores, { metadata: { name: 'disks' }, spec: { ...spec, options: { maxVolumes: '7' } } });
  await eventually(() => [...(view()?.keys() ?? [])]).toEqual(['others']);
  expect(notified).toEqual([undefined]);
  gate.resolve();
  // The agent applies the change a moment later, and the controller polls it in between.
  await eventually(asked).toBeGreaterThan(3);
  expect(view()?.get('disks')?.identity).toBe('before');
  // Whether the agent has applied the change need not show in its report, so waiting claims have to retry.
  expect(notified.length).toBeGreaterThan(2);
  identity = 'after';
  await eventually(() => view()?.get('disks')?.identity).toBe('after');
});

test('a poll without a change causes no notification', async () => {
  aStore('disks');
  let volumes = 1;
  it.agents.connect(
    'node-1',
    answering(() => [listed('disks', { volumes })]),
  );
  const told: unknown[] = [];
  it.parts.nodeStores.onChange((node, before) => told.push([node, before?.stores.get('disks')?.volumes]));
  const stores = it.start(({ nodeStores }) => nodeStores);
  const look = async (): Promise<void> => {
    const { again } = stores.counts();
    stores.add('node-1');
    await eventually(() => stores.counts().again).toBe(again + 1);
  };
  await eventually(() => told).toEqual([['node-1', undefined]]);
  await eventually(() => stores.counts()).toMatchObject({ waiting: 0, running: 0 });
  for (const at of [1, 1, 2, 2]) {
    volumes = at;
    await look();
  }
  it.agents.lose('node-1');
  await eventually(() => stores.reportOf('node-1')).toBe(undefined);
  expect(told).toEqual([
    ['node-1', undefined],
    ['node-1', 1],
    ['node-1', 2],
  ]);
});

test.each<[string, () => readonly object[]]>([
  ['stores without a Store object', () => Array.from({ length: 900 }, (_, at) => listed(`made-up-${at}`))],
  ['one store many times', () => Array.from({ length: 900 }, () => listed('disks'))],
])('an agent that lists %s costs no calls and no memory', async (_, others) => {
  aStore('disks');
  const answer = answering(() => [listed('disks'), ...others()]);
  it.agents.connect('node-1', answer);
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => seen('node-1')).toEqual([['disks', true, 2000n]]);
  expect(it.agents.requests.filter((one) => one.includes('/check'))).toEqual(['node-1 POST /v1/stores/disks/check']);
});

test('an agent that lists more stores than any cluster has is refused', async () => {
  aStore('disks');
  it.agents.connect(
    'node-1',
    answering(() => Array.from({ length: 10_001 }, () => listed('disks'))),
  );
  const stores = it.start(({ nodeStores }) => nodeStores);
  await eventually(() => stores.counts().retried).toBeGreaterThan(0);
  expect(stores.reportOf('node-1')).toBe(undefined);
});

test('the problem text of an agent is truncated', async () => {
  aStore('disks');
  const long = 'x'.repeat(100_000);
  it.agents.connect('node-1', ({ path }) =>
    path === '/v1/stores' ? { items: [listed('disks')] } : { steps: [{ ok: false, detail: long, action: long }] },
  );
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => it.parts.nodeStores.reportOf('node-1')?.stores.get('disks')?.problem?.length).toBe(1_024);
});

test('only a few stores of a node are checked concurrently', async () => {
  const names = Array.from({ length: 12 }, (_, at) => `disk-${at}`);
  for (const name of names) aStore(name);
  let [now, most] = [0, 0];
  it.agents.connect('node-1', async (request) => {
    if (!request.path.endsWith('/check')) return answering(() => names.map((name) => listed(name)))(request);
    now++;
    most = Math.max(most, now);
    await setImmediate();
    now--;
    return { steps: [{ ok: true }], totalBytes: '1', freeBytes: '1' };
  });
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => it.parts.nodeStores.reportOf('node-1')?.stores.size).toBe(12);
  expect(most).toBe(4);
});
