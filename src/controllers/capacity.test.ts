import { describe, expect, test } from 'vitest';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { csiStorageCapacities } from '#wire/kube/resources.ts';
import type { AgentRequest } from './agents.ts';
import { type CapacityController, createCapacity } from './capacity.ts';
import { createNodeStores } from './node-stores.ts';

const it = controllerFixture();
const mib = 1024n ** 2n;
const drivers = '/apis/storage.k8s.io/v1/csidrivers';
const objects = '/apis/storage.k8s.io/v1/namespaces/stowage-system/csistoragecapacities';

/** An agent whose store `disks` has so much room, of 1000 MiB. */
function connect(node: string, free: () => bigint, isOpen = true): void {
  it.api.put(paths.nodes, { metadata: { name: node, uid: node, labels: { [nodeTopologyKey]: node } } });
  const listed = {
    name: 'disks',
    kind: 'local',
    state: 'open',
    problem: null,
    access: ['filesystem'],
    volumes: 0,
    bytes: '0',
  };
  const steps = [{ step: 'look', ok: isOpen, detail: 'it is gone', action: 'Bring it back.' }];
  it.agents.connect(node, ({ path }: AgentRequest) =>
    path === '/v1/stores' ? { items: [listed] } : { steps, totalBytes: String(1000n * mib), freeBytes: String(free()) },
  );
}

function begin(): CapacityController & { readonly clock: ReturnType<typeof createFakeClock> } {
  const clock = createFakeClock();
  it.api.put(paths.stores, { metadata: { name: 'disks' }, spec: { uri: 'local:///disks' } });
  for (const name of ['local.stowage.dev', 'file.stowage.dev'])
    it.api.put(drivers, { metadata: { name, uid: `uid-of-${name}` }, spec: {} });
  const stores = createNodeStores(it.parts);
  const capacity = createCapacity({ ...it.parts, clock, stores });
  it.start(() => capacity);
  it.start(() => stores);
  it.start(() => ({ ...stores, run: (scope) => capacity.cache.run(scope) }));
  return { ...capacity, clock };
}

const said = async (): Promise<readonly string[]> =>
  (await it.list(csiStorageCapacities))
    .map(({ storageClassName, nodeTopology, capacity }) => {
      const node = nodeTopology?.matchLabels?.[nodeTopologyKey];
      return `${storageClassName} ${node ?? 'everywhere'} ${capacity}`;
    })
    .toSorted();
const aLocalClass = (): void =>
  void it.api.put(paths.classes, aClass('fast', { provisioner: 'local.stowage.dev', parameters: { store: 'disks' } }));
const writes = (): number => it.changes().filter((one) => one.includes('csistoragecapacities')).length;

describe('CSIStorageCapacity objects', () => {
  test('are written for each class and node, and are owned by the CSIDriver', async () => {
    connect('node-1', () => 500n * mib);
    connect('node-2', () => 300n * mib, false);
    aLocalClass();
    begin();
    await eventually(said).toEqual(['fast node-1 500Mi', 'fast node-2 0']);
    const [one] = await it.list(csiStorageCapacities);
    expect(one?.metadata.ownerReferences).toEqual([
      {
        apiVersion: 'storage.k8s.io/v1',
        kind: 'CSIDriver',
        name: 'local.stowage.dev',
        uid: 'uid-of-local.stowage.dev',
      },
    ]);
  });

  test('are owned by the current CSIDriver after it was recreated', async () => {
    connect('node-1', () => 500n * mib);
    connect('node-2', () => 300n * mib);
    aLocalClass();
    begin();
    await eventually(said).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
    it.api.remove(drivers, 'local.stowage.dev');
    it.api.put(drivers, { metadata: { name: 'local.stowage.dev', uid: 'uid-of-the-next' }, spec: {} });
    // Kubernetes deletes objects without an owner.
    for (const { metadata } of await it.list(csiStorageCapacities)) it.api.remove(objects, metadata.name ?? '');
    await eventually(said).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
    const owners = (await it.list(csiStorageCapacities)).map(({ metadata }) => metadata.ownerReferences?.[0]?.uid);
    expect(owners).toEqual(['uid-of-the-next', 'uid-of-the-next']);
  });

  test('are not written without a CSIDriver, which is read only before a write', async () => {
    connect('node-1', () => 500n * mib);
    aLocalClass();
    const { counts, ...capacity } = begin();
    await eventually(said).toEqual(['fast node-1 500Mi']);
    const asked = (): number => it.api.requests.filter((one) => one === `GET ${drivers}/local.stowage.dev`).length;
    const look = async (): Promise<void> => {
      const before = counts().again;
      capacity.add('fast');
      await eventually(() => counts().again).toBeGreaterThan(before);
    };
    const before = asked();
    await look();
    expect(asked()).toBe(before);
    it.api.remove(drivers, 'local.stowage.dev');
    for (const { metadata } of await it.list(csiStorageCapacities)) it.api.remove(objects, metadata.name ?? '');
    await eventually(asked).toBeGreaterThan(before);
    await look();
    expect(await said()).toEqual([]);
  });

  test('are written for a node as soon as its kubelet has registered the driver', async () => {
    connect('node-1', () => 500n * mib);
    connect('node-2', () => 300n * mib);
    it.api.put(paths.nodes, { metadata: { name: 'node-2', uid: 'node-2' } });
    aLocalClass();
    begin();
    await eventually(said).toEqual(['fast node-1 500Mi']);
    it.api.put(paths.nodes, { metadata: { name: 'node-2', uid: 'node-2', labels: { [nodeTopologyKey]: 'node-2' } } });
    await eventually(said).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
  });

  test('are written once for a class of a shared store', async () => {
    it.api.put(paths.stores, {
      metadata: { name: 'silver' },
      spec: { uri: 'nfs://server/export' },
      status: { capacity: { total: '10Gi', free: '4Gi' } },
    });
    it.api.put(paths.classes, aClass());
    begin();
    await eventually(said).toEqual(['fast everywhere 4Gi']);
    // This selector matches every node.
    expect((await it.list(csiStorageCapacities))[0]?.nodeTopology).toEqual({ matchLabels: {} });
  });

  test('are updated after a large change, or after a while', async () => {
    let free = 500n * mib;
    connect('node-1', () => free);
    aLocalClass();
    const { clock, counts, ...capacity } = begin();
    await eventually(said).toEqual(['fast node-1 500Mi']);
    const look = async (): Promise<void> => {
      const before = it.agents.requests.length;
      connect('node-1', () => free);
      await eventually(() => it.agents.requests.length).toBeGreaterThanOrEqual(before + 2);
      const done = counts().again;
      capacity.add('fast');
      await eventually(() => counts().again).toBeGreaterThan(done);
    };
    free = 496n * mib;
    await look();
    expect([await said(), writes()]).toEqual([['fast node-1 500Mi'], 1]);
    free = 480n * mib;
    await look();
    await eventually(said).toEqual(['fast node-1 480Mi']);
    free = 479n * mib;
    await look();
    expect(writes()).toBe(2);
    clock.advance(300_000);
    await look();
    await eventually(said).toEqual(['fast node-1 479Mi']);
  });

  test('stay while an agent reconnects, and are deleted with their class', async () => {
    connect('node-1', () => 500n * mib);
    aLocalClass();
    // An earlier controller left this object.
    const stale = { metadata: { name: 'old', labels: { 'app.kubernetes.io/managed-by': 'stowage' } } };
    it.api.put(objects, { ...stale, storageClassName: 'gone', capacity: '1Gi' });
    const { clock, counts, ...capacity } = begin();
    await eventually(said).toEqual(['fast node-1 500Mi']);
    it.agents.lose('node-1');
    clock.advance(119_000);
    const done = counts().again;
    capacity.add('fast');
    await eventually(() => counts().again).toBeGreaterThan(done);
    expect(await said()).toEqual(['fast node-1 500Mi']);
    clock.advance(2_000);
    capacity.add('fast');
    await eventually(said).toEqual([]);
    connect('node-1', () => 500n * mib);
    await eventually(said).toEqual(['fast node-1 500Mi']);
    it.api.remove(paths.classes, 'fast');
    await eventually(said).toEqual([]);
  });
});
