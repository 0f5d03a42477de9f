import { renameSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import type { AnyObject } from '#testing/fakes/kube-objects.ts';
import { storageClasses } from '#wire/kube/resources.ts';
import type { Condition } from '#wire/kube/types.ts';
import type { AgentRequest } from './agents.ts';
import { storeObjects } from './store-object.ts';
import { createStoresController } from './stores.ts';

const fixture = controllerFixture();

const aStore = (name: string, spec: object): AnyObject => ({
  metadata: { name, uid: `uid-of-${name}`, generation: 1 },
  spec,
});
const conditions = async (name = 'gold'): Promise<Record<string, Condition>> => {
  const all = await fixture.list(storeObjects);
  const found = all.find(({ metadata }) => metadata.name === name)?.status?.conditions ?? [];
  return Object.fromEntries(found.map((one) => [one.type, one]));
};
const readyStatus = async (name?: string): Promise<string | undefined> => (await conditions(name))['Ready']?.status;
const listClasses = () => fixture.list(storageClasses);

describe('a Store object', () => {
  test('becomes a store that users cannot remove by the API, and shows its status', async () => {
    fixture.api.put(paths.stores, aStore('gold', { uri: fixture.newStoreUri('gold'), options: { maxVolumes: '3' } }));
    const controller = fixture.start(createStoresController);
    await controller.whenConfigured();
    await eventually(readyStatus).toBe('True');
    const { config } = fixture.core.stores.view('gold');
    expect(config).toMatchObject({ origin: 'cluster', policy: { maxVolumes: 3 } });
    await expect(fixture.core.stores.remove('gold', aCall())).rejects.toMatchObject({
      code: 'denied',
      reason: 'store-from-cluster',
      action: 'Delete the object: kubectl delete store gold',
    });
    const [object] = await fixture.list(storeObjects);
    expect(object?.status).toMatchObject({
      kind: 'nfs',
      observedGeneration: 1,
      volumes: 0,
      capacity: { total: expect.any(String), free: expect.any(String) },
      conditions: [
        { type: 'Ready', status: 'True', reason: 'Open', observedGeneration: 1 },
        { type: 'Reachable', status: 'True' },
      ],
    });
    // The controller writes the status once: it does not repeat an unchanged status.
    controller.add('gold');
    await eventually(() => controller.counts().running).toBe(0);
    expect(fixture.changes()).toEqual([`PATCH ${paths.stores}/gold/status`]);
  });

  test('removes its store when it is deleted, and does not affect stores that were added by hand', async () => {
    fixture.api.put(paths.stores, aStore('gold', { uri: fixture.newStoreUri('gold') }));
    fixture.start(createStoresController);
    await eventually(readyStatus).toBe('True');
    fixture.api.remove(paths.stores, 'gold');
    await eventually(() => fixture.core.stores.list().map(({ config }) => config.name)).not.toContain('gold');
    expect(fixture.core.stores.list().map(({ config }) => config.name)).toContain('silver');
  });

  test('that is invalid shows why, and does not affect other objects', async () => {
    fixture.api.put(paths.stores, aStore('gold', { uri: 'nfs://server/x', options: { colour: 'red' } }));
    fixture.api.put(paths.stores, aStore('tin', { uri: fixture.newStoreUri('tin') }));
    fixture.start(createStoresController);
    await eventually(() => readyStatus('tin')).toBe('True');
    await eventually(conditions).toMatchObject({
      Ready: {
        status: 'False',
        reason: 'Invalid',
        message: expect.stringContaining("unknown option 'colour'. Allowed"),
      },
    });
  });

  test.each([
    [
      { network: 'netns:storage' },
      "a store with the option network cannot be used in Kubernetes: the pods that mount its volumes have the node's network. Leave out spec.options.network, and give the nodes a route to the server.",
    ],
    [
      { sourceport: 'privileged' },
      "a store with the option sourceport cannot be used in Kubernetes: the pods that mount its volumes have no right to choose their ports. Leave out spec.options.sourceport, and have the server's administrator export it with the option insecure.",
    ],
  ])('with %j, which pods cannot use, is invalid at once', async (options, message) => {
    fixture.api.put(paths.stores, aStore('gold', { uri: fixture.newStoreUri('gold'), options }));
    fixture.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'False', reason: 'Invalid', message } });
    expect(fixture.core.stores.list().map(({ config }) => config.name)).not.toContain('gold');
  });

  test('shows why its store is not ready, and that it is ready later', async () => {
    const uri = fixture.newStoreUri('gold');
    const folder = uri.slice('nfs://server'.length);
    renameSync(folder, `${folder}-away`);
    fixture.api.put(paths.stores, aStore('gold', { uri }));
    const controller = fixture.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'False' }, Reachable: { status: 'False' } });
    const { message = '', lastTransitionTime } = (await conditions())['Ready'] ?? {};
    expect(message).toContain(folder);
    expect(lastTransitionTime).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    renameSync(`${folder}-away`, folder);
    controller.add('gold');
    await eventually(readyStatus).toBe('True');
    const status = async () => (await fixture.list(storeObjects))[0]?.status;
    expect(await status()).toHaveProperty('capacity');
    renameSync(folder, `${folder}-away`);
    controller.add('gold');
    await eventually(readyStatus).toBe('False');
    expect(await status()).not.toHaveProperty('capacity');
    const reconcileAgain = async (): Promise<void> => {
      const { again } = controller.counts();
      controller.add('gold');
      await eventually(() => controller.counts().again).toBeGreaterThan(again);
    };
    // A reconcile in progress may have read the object before the last write, and writes the status again. It ends before two more
    // reconciles end.
    await reconcileAgain();
    await reconcileAgain();
    // A reconcile that reads the cache before the cache has the last write would repeat it, too.
    const { resourceVersion } = (await fixture.list(storeObjects))[0]?.metadata ?? {};
    await eventually(() => fixture.caches.stores.get('gold')?.metadata.resourceVersion).toBe(resourceVersion);
    const before = fixture.changes().length;
    await reconcileAgain();
    expect(fixture.changes()).toHaveLength(before);
  });

  test('for a store on nodes shows the reports of the agents', async () => {
    fixture.api.put(paths.stores, aStore('disk', { uri: 'local:///srv/data' }));
    const answers = (isOpen: boolean) => (request: AgentRequest) => {
      const listed = { name: 'disk', kind: 'local', state: 'open', problem: null, volumes: 2, access: [], bytes: '0' };
      const steps = [{ step: 'look', ok: isOpen, detail: 'there is no directory', action: 'Make it.' }];
      const sizes = { totalBytes: '4096', freeBytes: '1024' };
      return request.path === '/v1/stores' ? { items: [listed] } : { steps, ...(isOpen ? sizes : {}) };
    };
    fixture.agents.connect('node-1', answers(true));
    fixture.agents.connect('node-2', answers(false));
    fixture.start(createStoresController);
    fixture.start(({ nodeStores }) => nodeStores);
    const oneNodeFails = 'Open on 1 of 2 nodes; node-2: there is no directory. Make it.';
    await eventually(() => conditions('disk')).toMatchObject({
      Ready: { status: 'True', reason: 'OnNodes', message: oneNodeFails },
      Reachable: { status: 'False', reason: 'NotOnAllNodes', message: oneNodeFails },
    });
    const [object] = await fixture.list(storeObjects);
    expect(object?.status).toMatchObject({ capacity: { total: '4Ki', free: '1Ki' }, volumes: 4 });
    fixture.agents.connect('node-2', answers(true));
    const allNodesOpen = { status: 'True', message: 'Open on 2 of 2 nodes' };
    await eventually(() => conditions('disk')).toMatchObject({ Ready: allNodesOpen, Reachable: allNodesOpen });
    fixture.agents.disconnect('node-1');
    fixture.agents.connect('node-2', answers(false));
    await eventually(() => conditions('disk')).toMatchObject({ Ready: { status: 'False', reason: 'OnNoNode' } });
  });

  test('for a store on nodes is not opened by the controller', async () => {
    fixture.api.put(paths.stores, aStore('disk', { uri: 'local:///srv/data', storageClass: {} }));
    fixture.start(createStoresController);
    await eventually(() => conditions('disk')).toMatchObject({ Ready: { status: 'Unknown', reason: 'NoAgents' } });
    expect(fixture.core.stores.list().map(({ config }) => config.name)).not.toContain('disk');
    expect(await listClasses()).toMatchObject([
      { provisioner: 'local.stowage.dev', volumeBindingMode: 'WaitForFirstConsumer' },
    ]);
  });

  test('is not necessary for `whenConfigured` to resolve', async () => {
    await fixture.start(createStoresController).whenConfigured();
  });
});

describe('the class of a store', () => {
  const classSpec = { reclaimPolicy: 'Retain', default: true, nameTemplate: '{name}', enforce: true };

  test('is created, kept, recreated and deleted as the Store object says', async () => {
    const uri = fixture.newStoreUri('gold');
    const store = aStore('gold', { uri, storageClass: classSpec });
    fixture.api.put(paths.stores, store);
    fixture.start(createStoresController);
    await eventually(listClasses).toMatchObject([
      {
        metadata: {
          name: 'gold',
          labels: { 'stowage.dev/store': 'gold' },
          annotations: { 'storageclass.kubernetes.io/is-default-class': 'true' },
          ownerReferences: [{ kind: 'Store', name: 'gold', uid: 'uid-of-gold' }],
        },
        provisioner: 'file.stowage.dev',
        parameters: { store: 'gold', nameTemplate: '{name}', enforce: 'true' },
        reclaimPolicy: 'Retain',
        volumeBindingMode: 'Immediate',
        allowVolumeExpansion: true,
      },
    ]);
    fixture.api.remove(paths.classes, 'gold');
    await eventually(async () => (await listClasses()).length).toBe(1);
    await eventually(async () => (await conditions())['StorageClass']?.status).toBe('True');
    fixture.api.put(paths.stores, aStore('gold', { uri, storageClass: { ...classSpec, reclaimPolicy: 'Delete' } }));
    await eventually(async () => (await listClasses()).map(({ reclaimPolicy }) => reclaimPolicy)).toEqual(['Delete']);
    fixture.api.put(paths.stores, aStore('gold', { uri, storageClass: { ...classSpec, name: 'other' } }));
    await eventually(async () => (await listClasses()).map(({ metadata }) => metadata.name)).toEqual(['other']);
    fixture.api.put(paths.stores, aStore('gold', { uri }));
    await eventually(listClasses).toEqual([]);
  });

  test('can be copied: the controller does not change a copy with another name', async () => {
    const uri = fixture.newStoreUri('gold');
    fixture.api.put(paths.stores, aStore('gold', { uri, storageClass: {} }));
    fixture.start(createStoresController);
    await eventually(async () => (await listClasses()).length).toBe(1);
    const [storageClass] = await listClasses();
    // The copy has the same labels, annotations and owner, as tools copy objects.
    const copy = { ...storageClass, metadata: { ...storageClass?.metadata, name: 'mine', uid: 'uid-of-mine' } };
    fixture.api.put(paths.classes, copy as unknown as AnyObject);
    fixture.api.put(paths.stores, aStore('gold', { uri, storageClass: { reclaimPolicy: 'Retain' } }));
    const policies = async () =>
      (await listClasses()).map(({ metadata, reclaimPolicy }) => [metadata.name, reclaimPolicy]);
    await eventually(async () => (await policies()).find(([name]) => name === 'gold')).toEqual(['gold', 'Retain']);
    expect(await policies()).toContainEqual(['mine', 'Delete']);
  });

  test('is recreated for a new store of the same name, since Kubernetes deletes it with the old one', async () => {
    const store = aStore('gold', { uri: fixture.newStoreUri('gold'), storageClass: {} });
    fixture.api.put(paths.stores, store);
    fixture.start(createStoresController);
    const owners = async () => (await listClasses()).map(({ metadata }) => metadata.ownerReferences?.[0]?.uid);
    await eventually(owners).toEqual(['uid-of-gold']);
    fixture.api.remove(paths.stores, 'gold');
    fixture.api.put(paths.stores, { ...store, metadata: { ...store.metadata, uid: 'another' } });
    await eventually(owners).toEqual(['another']);
  });

  test('of another provisioner with the same name stays unchanged, and the Store gets an Event', async () => {
    fixture.api.put(paths.classes, aClass('gold', { provisioner: 'other.example' }));
    fixture.api.put(paths.stores, aStore('gold', { uri: fixture.newStoreUri('gold'), storageClass: {} }));
    fixture.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'True' }, StorageClass: { status: 'False' } });
    await eventually(() => fixture.notes('StorageClassTaken')).toHaveLength(1);
    expect(await listClasses()).toMatchObject([{ provisioner: 'other.example' }]);
    fixture.api.remove(paths.classes, 'gold');
    await eventually(listClasses).toMatchObject([{ provisioner: 'file.stowage.dev' }]);
  });
});
