import { readdirSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { startServer } from '#testing/server.ts';
import { csiStorageCapacities, storageClasses } from '#wire/kube/resources.ts';
import type { AgentRequest } from './agents.ts';
import { createCapacity } from './capacity.ts';
import { createNodeProvisioner } from './node-provisioner.ts';
import { createNodeStores } from './node-stores.ts';
import { createNodeVolumes } from './node-volumes.ts';
import { createOrphans } from './orphans.ts';
import type { VolumeRequest } from './provisioner.ts';
import { storeObjects } from './store-object.ts';
import { createStoresController } from './stores.ts';

const fixture = controllerFixture();

/** Writes a Store object of a newer version of Stowage: this version does not have its kind. */
const putUnknown = (name: string, more: object = {}): void =>
  void fixture.api.put(paths.stores, {
    metadata: { name, uid: `uid-of-${name}`, generation: 1 },
    spec: { uri: `ceph://cluster/${name}` },
    ...more,
  });
const putLocal = (name: string): void =>
  void fixture.api.put(paths.stores, { metadata: { name, uid: `uid-of-${name}` }, spec: { uri: `local:///${name}` } });
const whenSynced = () =>
  eventually(() => Object.values(fixture.caches).every(({ synced }) => synced)).toBe(true) as Promise<void>;

/** Connects an agent that lists these stores, all of them open. */
function connectAgent(node: string, ...stores: readonly object[]): void {
  const listed = { state: 'open', problem: null, access: ['filesystem'], volumes: 0, bytes: '0' };
  fixture.agents.connect(node, ({ path }: AgentRequest) =>
    path === '/v1/stores'
      ? { items: stores.map((store) => ({ ...listed, ...store })) }
      : { steps: [{ ok: true }], totalBytes: '4000', freeBytes: '2000' },
  );
}

describe('a Store object of an unknown kind', () => {
  test('is invalid and stays closed, but still gets a StorageClass of file.stowage.dev', async () => {
    putUnknown('odd', { spec: { uri: 'ceph://cluster/odd', storageClass: {} } });
    fixture.start(createStoresController);
    await eventually(async () => (await fixture.list(storeObjects))[0]?.status).toMatchObject({
      kind: 'ceph',
      conditions: [
        { type: 'Ready', status: 'False', reason: 'Invalid', message: expect.stringContaining('no store is known') },
        { type: 'Reachable' },
        { type: 'StorageClass', status: 'True' },
      ],
    });
    expect(await fixture.list(storageClasses)).toMatchObject([
      { provisioner: 'file.stowage.dev', parameters: { store: 'odd' }, volumeBindingMode: 'Immediate' },
    ]);
    expect(fixture.core.stores.list().map(({ config }) => config.name)).not.toContain('odd');
  });

  test('counts as a store of file.stowage.dev for a claim, whose request fails since the object is invalid', async () => {
    putUnknown('odd');
    fixture.start(createNodeVolumes);
    await whenSynced();
    await expect(
      fixture.parts.provisioners.get('file.stowage.dev')?.create(requestFor('odd'), aCall()),
    ).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'store-object-invalid',
    });
  });

  test('does not count as a store of local.stowage.dev for a claim', async () => {
    putUnknown('odd');
    putLocal('disks');
    const volumes = fixture.start(createNodeVolumes);
    const local = createNodeProvisioner({ ...fixture.parts, stores: fixture.parts.nodeStores, volumes });
    await whenSynced();
    await expect(local.create(requestFor('odd'), aCall())).rejects.toMatchObject({
      reason: 'class-store-unknown',
      message: "there is no store 'odd' for the class",
      action: 'Ask the administrator for a class whose parameter store is one of these: disks',
    });
    // Without a parameter, the claim gets the only store of the driver.
    await expect(local.create({ ...requestFor(undefined), node: 'gone' }, aCall())).rejects.toMatchObject({
      reason: 'node-unknown',
    });
  });

  test('counts as a store of file.stowage.dev for CSIStorageCapacity, and not of local.stowage.dev', async () => {
    const clock = createFakeClock();
    const driversPath = '/apis/storage.k8s.io/v1/csidrivers';
    for (const name of ['local.stowage.dev', 'file.stowage.dev'])
      fixture.api.put(driversPath, { metadata: { name, uid: `uid-of-${name}` }, spec: {} });
    const withFreeSpace = (free: string) => ({ status: { capacity: { total: '10Gi', free } } });
    fixture.api.put(paths.stores, {
      metadata: { name: 'silver' },
      spec: { uri: 'nfs://server/export' },
      ...withFreeSpace('4Gi'),
    });
    putUnknown('odd', withFreeSpace('1Gi'));
    fixture.api.put(paths.classes, aClass('named', { parameters: { store: 'odd' } }));
    fixture.api.put(paths.classes, aClass('any', { parameters: {} }));
    putLocal('disks');
    fixture.api.put(paths.nodes, {
      metadata: { name: 'node-1', uid: 'node-1', labels: { [nodeTopologyKey]: 'node-1' } },
    });
    connectAgent('node-1', { name: 'disks', kind: 'local' });
    fixture.api.put(paths.classes, aClass('any-local', { provisioner: 'local.stowage.dev', parameters: {} }));
    fixture.start(({ nodeStores }) => nodeStores);
    const capacity = createCapacity({ ...fixture.parts, clock, stores: fixture.parts.nodeStores });
    fixture.start(() => capacity);
    fixture.start(() => ({ ...fixture.parts.nodeStores, run: (scope) => capacity.cache.run(scope) }));
    const capacities = async (): Promise<readonly string[]> =>
      (await fixture.list(csiStorageCapacities)).map((one) => `${one.storageClassName} ${one.capacity}`).toSorted();
    await eventually(capacities).toEqual(['any-local 2000', 'named 1Gi']);
    // A changed store triggers a reconcile of the classes of its driver: no time passes here.
    putUnknown('odd', withFreeSpace('3Gi'));
    await eventually(capacities).toEqual(['any-local 2000', 'named 3Gi']);
    fixture.api.remove(paths.stores, 'odd');
    await eventually(capacities).toContain('any 4Gi');
  });
});

describe('an agent', () => {
  const reportedStores = (node: string): readonly string[] => [
    ...(fixture.parts.nodeStores.reportOf(node)?.stores.keys() ?? []),
  ];

  test('cannot claim a store of an unknown kind as its own', async () => {
    putUnknown('odd');
    putLocal('disks');
    connectAgent('node-1', { name: 'odd', kind: 'local' }, { name: 'disks', kind: 'local' });
    fixture.start(({ nodeStores }) => nodeStores);
    await eventually(() => reportedStores('node-1')).toEqual(['disks']);
  });

  test.each(['ceph', 'nfs'])('cannot report a local store as kind %s', async (kind) => {
    for (const name of ['disks', 'others']) putLocal(name);
    connectAgent('node-1', { name: 'disks', kind }, { name: 'others', kind: 'local' });
    fixture.start(({ nodeStores }) => nodeStores);
    await eventually(() => reportedStores('node-1')).toEqual(['others']);
  });

  test.each([
    ['is not soon polled again for a store of an unknown kind', putUnknown, false],
    ['is soon polled again for a local store that it does not have yet', putLocal, true],
  ])('%s', async (_, putStore, isPolledSoon) => {
    const clock = createFakeClock();
    putStore('one');
    connectAgent('node-1');
    const stores = fixture.start(() => createNodeStores({ ...fixture.parts, clock }));
    await whenSynced();
    await eventually(() => stores.reportOf('node-1')).toBeDefined();
    await eventually(() => stores.counts()).toMatchObject({ waiting: 0, running: 0 });
    const before = fixture.agents.requests.length;
    clock.advance(5_000);
    await eventually(() => stores.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(fixture.agents.requests.length > before).toBe(isPolledSoon);
  });
});

describe('the search for orphans', () => {
  const clockAnHourAhead = () => ({ ...fixture.parts.clock, now: () => Date.now() + 3_600_000 });

  test('covers a store whose object is of an unknown kind, once it is open', async () => {
    const other = await startServer({ listen: 'none', kinds: [...fixture.parts.kinds.values()] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    const uri = fixture.newStoreUri('gold');
    await other.core.stores.add('gold', uri, aCall());
    const ownLabels = { 'stowage.dev/claim-uid': 'uid-of-orphan', 'stowage.dev/cluster': fixture.core.instance };
    const spec = { store: 'gold', name: 'orphan', bytes: 1n, access: undefined, labels: {}, ownLabels };
    await other.core.volumes.create(spec, aCall());
    putUnknown('gold');
    const orphans = fixture.start(createOrphans, { clock: clockAnHourAhead() });
    await eventually(() => orphans.counts().again).toBeGreaterThan(0);
    expect(orphans.counts().done).toBe(0);
    await fixture.core.stores.add('gold', uri, aCall());
    await eventually(() => readdirSync(new URL(uri).pathname)).not.toContain('orphan');
  });

  test.each<[string, (name: string) => void]>([
    ['whose object is local', putLocal],
    ['that the controller has open as a local store', putUnknown],
  ])('ignores a store %s', async (_, putStore) => {
    putStore('local');
    const orphans = fixture.start(createOrphans, { clock: clockAnHourAhead() });
    await eventually(() => orphans.counts().done).toBe(1);
    expect(orphans.counts().again).toBe(0);
  });
});

const requestFor = (store: string | undefined): VolumeRequest => ({
  claim: { namespace: 'shop', name: 'data', uid: 'uid-of-data' },
  store,
  name: 'data',
  bytes: 1n,
  enforce: false,
  access: 'filesystem',
  labels: {},
  node: undefined,
  allowedTopologies: [],
});
