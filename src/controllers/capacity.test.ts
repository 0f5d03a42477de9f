import { describe, expect, test } from 'vitest';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { csiStorageCapacities } from '#wire/kube/resources.ts';
import type { AgentRequest } from './agents.ts';
import { type CapacityController, createCapacity } from './capacity.ts';
import { createNodeStores } from './node-stores.ts';

const fixture = controllerFixture();
const mib = 1024n ** 2n;
const driversPath = '/apis/storage.k8s.io/v1/csidrivers';
const capacitiesPath = '/apis/storage.k8s.io/v1/namespaces/stowage-system/csistoragecapacities';

/** Connects an agent whose store `disks` has this free space, of 1000 MiB. */
function connectAgent(node: string, free: () => bigint, isOpen = true): void {
  fixture.api.put(paths.nodes, { metadata: { name: node, uid: node, labels: { [nodeTopologyKey]: node } } });
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
  fixture.agents.connect(node, ({ path }: AgentRequest) =>
    path === '/v1/stores' ? { items: [listed] } : { steps, totalBytes: String(1000n * mib), freeBytes: String(free()) },
  );
}

function startCapacity(): CapacityController & { readonly clock: ReturnType<typeof createFakeClock> } {
  const clock = createFakeClock();
  fixture.api.put(paths.stores, { metadata: { name: 'disks' }, spec: { uri: 'local:///disks' } });
  for (const name of ['local.stowage.dev', 'file.stowage.dev'])
    fixture.api.put(driversPath, { metadata: { name, uid: `uid-of-${name}` }, spec: {} });
  const stores = createNodeStores(fixture.parts);
  const capacity = createCapacity({ ...fixture.parts, clock, stores });
  fixture.start(() => capacity);
  fixture.start(() => stores);
  fixture.start(() => ({ ...stores, run: (scope) => capacity.cache.run(scope) }));
  return { ...capacity, clock };
}

const capacities = async (): Promise<readonly string[]> =>
  (await fixture.list(csiStorageCapacities))
    .map(({ storageClassName, nodeTopology, capacity }) => {
      const node = nodeTopology?.matchLabels?.[nodeTopologyKey];
      return `${storageClassName} ${node ?? 'everywhere'} ${capacity}`;
    })
    .toSorted();
const putLocalClass = (): void =>
  void fixture.api.put(
    paths.classes,
    aClass('fast', { provisioner: 'local.stowage.dev', parameters: { store: 'disks' } }),
  );
const writes = (): number => fixture.changes().filter((one) => one.includes('csistoragecapacities')).length;

describe('CSIStorageCapacity objects', () => {
  test('are written for each class and node, and are owned by the CSIDriver', async () => {
    connectAgent('node-1', () => 500n * mib);
    connectAgent('node-2', () => 300n * mib, false);
    putLocalClass();
    startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi', 'fast node-2 0']);
    const [capacity] = await fixture.list(csiStorageCapacities);
    expect(capacity?.metadata.ownerReferences).toEqual([
      {
        apiVersion: 'storage.k8s.io/v1',
        kind: 'CSIDriver',
        name: 'local.stowage.dev',
        uid: 'uid-of-local.stowage.dev',
      },
    ]);
  });

  test('are owned by the current CSIDriver after it was recreated', async () => {
    connectAgent('node-1', () => 500n * mib);
    connectAgent('node-2', () => 300n * mib);
    putLocalClass();
    startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
    fixture.api.remove(driversPath, 'local.stowage.dev');
    fixture.api.put(driversPath, { metadata: { name: 'local.stowage.dev', uid: 'uid-of-the-next' }, spec: {} });
    // Kubernetes deletes objects without an owner.
    for (const { metadata } of await fixture.list(csiStorageCapacities))
      fixture.api.remove(capacitiesPath, metadata.name ?? '');
    await eventually(capacities).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
    const owners = (await fixture.list(csiStorageCapacities)).map(({ metadata }) => metadata.ownerReferences?.[0]?.uid);
    expect(owners).toEqual(['uid-of-the-next', 'uid-of-the-next']);
  });

  test('are not written without a CSIDriver, which the controller reads only before a write', async () => {
    connectAgent('node-1', () => 500n * mib);
    putLocalClass();
    const { counts, ...capacity } = startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi']);
    const driverReads = (): number =>
      fixture.api.requests.filter((one) => one === `GET ${driversPath}/local.stowage.dev`).length;
    const reconcileAgain = async (): Promise<void> => {
      const before = counts().again;
      capacity.add('fast');
      await eventually(() => counts().again).toBeGreaterThan(before);
    };
    const before = driverReads();
    await reconcileAgain();
    expect(driverReads()).toBe(before);
    fixture.api.remove(driversPath, 'local.stowage.dev');
    for (const { metadata } of await fixture.list(csiStorageCapacities))
      fixture.api.remove(capacitiesPath, metadata.name ?? '');
    await eventually(driverReads).toBeGreaterThan(before);
    await reconcileAgain();
    expect(await capacities()).toEqual([]);
  });

  test('are written for a node as soon as its kubelet has registered the driver', async () => {
    connectAgent('node-1', () => 500n * mib);
    connectAgent('node-2', () => 300n * mib);
    fixture.api.put(paths.nodes, { metadata: { name: 'node-2', uid: 'node-2' } });
    putLocalClass();
    startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi']);
    fixture.api.put(paths.nodes, {
      metadata: { name: 'node-2', uid: 'node-2', labels: { [nodeTopologyKey]: 'node-2' } },
    });
    await eventually(capacities).toEqual(['fast node-1 500Mi', 'fast node-2 300Mi']);
  });

  test('are written once for a class of a shared store', async () => {
    fixture.api.put(paths.stores, {
      metadata: { name: 'silver' },
      spec: { uri: 'nfs://server/export' },
      status: { capacity: { total: '10Gi', free: '4Gi' } },
    });
    fixture.api.put(paths.classes, aClass());
    startCapacity();
    await eventually(capacities).toEqual(['fast everywhere 4Gi']);
    // This selector matches every node.
    expect((await fixture.list(csiStorageCapacities))[0]?.nodeTopology).toEqual({ matchLabels: {} });
  });

  test('are updated at once after a large change, and minutes later after a small change', async () => {
    let free = 500n * mib;
    connectAgent('node-1', () => free);
    putLocalClass();
    const { clock, counts, ...capacity } = startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi']);
    const pollAndReconcile = async (): Promise<void> => {
      const before = fixture.agents.requests.length;
      connectAgent('node-1', () => free);
      await eventually(() => fixture.agents.requests.length).toBeGreaterThanOrEqual(before + 2);
      const requeued = counts().again;
      capacity.add('fast');
      await eventually(() => counts().again).toBeGreaterThan(requeued);
    };
    free = 496n * mib;
    await pollAndReconcile();
    expect([await capacities(), writes()]).toEqual([['fast node-1 500Mi'], 1]);
    free = 480n * mib;
    await pollAndReconcile();
    await eventually(capacities).toEqual(['fast node-1 480Mi']);
    free = 479n * mib;
    await pollAndReconcile();
    expect(writes()).toBe(2);
    clock.advance(300_000);
    await pollAndReconcile();
    await eventually(capacities).toEqual(['fast node-1 479Mi']);
  });

  test('stay while an agent reconnects, and are deleted with their class', async () => {
    connectAgent('node-1', () => 500n * mib);
    putLocalClass();
    // An earlier controller left this object.
    const stale = { metadata: { name: 'old', labels: { 'app.kubernetes.io/managed-by': 'stowage' } } };
    fixture.api.put(capacitiesPath, { ...stale, storageClassName: 'gone', capacity: '1Gi' });
    const { clock, counts, ...capacity } = startCapacity();
    await eventually(capacities).toEqual(['fast node-1 500Mi']);
    fixture.agents.disconnect('node-1');
    clock.advance(119_000);
    const requeued = counts().again;
    capacity.add('fast');
    await eventually(() => counts().again).toBeGreaterThan(requeued);
    expect(await capacities()).toEqual(['fast node-1 500Mi']);
    clock.advance(2_000);
    capacity.add('fast');
    await eventually(capacities).toEqual([]);
    connectAgent('node-1', () => 500n * mib);
    await eventually(capacities).toEqual(['fast node-1 500Mi']);
    fixture.api.remove(paths.classes, 'fast');
    await eventually(capacities).toEqual([]);
  });
});
