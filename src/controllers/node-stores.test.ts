import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { controlled, eventually, paths } from '#testing/controlled.ts';
import type { AgentRequest } from './agents.ts';

const it = controlled();
const aStore = (name: string): void =>
  void it.api.put(paths.stores, { metadata: { name }, spec: { uri: `local:///${name}` } });
const listed = (name: string, more: object = {}): object => ({
  ...{ name, kind: 'local', state: 'open', problem: null, access: ['filesystem'], volumes: 1, bytes: '600', ...more },
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
  [...(it.parts.nodeStores.of(node)?.stores.values() ?? [])].map(({ name, isOpen, freeBytes }) => [
    name,
    isOpen,
    freeBytes,
  ]);

test('nodes are asked for what is their own: one disk that hangs says nothing of others, and limits count', async () => {
  for (const name of ['disks', 'bounded', 'full', 'silent']) aStore(name);
  const all = [
    ...[listed('disks'), listed('bounded', { maxBytes: '1000' }), listed('full', { maxVolumes: 1 }), listed('silent')],
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
  for (const bytes of [1500n, 500n, -1500n]) it.parts.nodeStores.took('node-1', 'disks', bytes);
  expect(it.parts.nodeStores.taken('node-1', 'disks')).toBe(500n);
  expect(it.parts.nodeStores.taken('node-1', 'bounded')).toBe(0n);
  expect(it.parts.nodeStores.of('node-1')?.stores.get('disks')?.freeBytes).toBe(2000n);
  it.parts.nodeStores.add('node-1');
  await eventually(() => it.parts.nodeStores.taken('node-1', 'disks')).toBe(0n);
  it.agents.lose('node-1');
  await eventually(() => [...it.parts.nodeStores.all()]).toEqual([]);
});

test('a store that is new is asked for until the agent has it', async () => {
  let all: readonly object[] = [];
  it.agents.connect(
    'node-1',
    answering(() => all),
  );
  it.start(({ nodeStores }) => nodeStores);
  await eventually(() => it.parts.nodeStores.of('node-1')).not.toBe(undefined);
  const asked = (): number => it.agents.asked.filter((one) => one === 'node-1 GET /v1/stores').length;
  const before = asked();
  aStore('disks');
  await eventually(asked).toBeGreaterThan(before + 1);
  all = [listed('disks')];
  await eventually(() => seen('node-1')).toEqual([['disks', true, 2000n]]);
});
