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

const it = controllerFixture();

const aStore = (name: string, spec: object): AnyObject => ({
  metadata: { name, uid: `uid-of-${name}`, generation: 1 },
  spec,
});
const conditions = async (name = 'gold'): Promise<Record<string, Condition>> => {
  const all = await it.list(storeObjects);
  const found = all.find(({ metadata }) => metadata.name === name)?.status?.conditions ?? [];
  return Object.fromEntries(found.map((one) => [one.type, one]));
};
const ready = async (name?: string): Promise<string | undefined> => (await conditions(name))['Ready']?.status;
const classes = () => it.list(storageClasses);

describe('a Store object', () => {
  test('becomes a store that users cannot remove by the API, and shows its status', async () => {
    it.api.put(paths.stores, aStore('gold', { uri: it.place('gold'), options: { maxVolumes: '3' } }));
    const controller = it.start(createStoresController);
    await controller.whenConfigured();
    await eventually(ready).toBe('True');
    const { config } = it.core.stores.view('gold');
    expect(config).toMatchObject({ origin: 'cluster', policy: { maxVolumes: 3 } });
    await expect(it.core.stores.remove('gold', aCall())).rejects.toMatchObject({
      code: 'denied',
      reason: 'store-from-cluster',
      action: 'Delete the object: kubectl delete store gold',
    });
    const [object] = await it.list(storeObjects);
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
    expect(it.changes()).toEqual([`PATCH ${paths.stores}/gold/status`]);
  });

  test('takes its store with it when it is deleted, and keeps stores that were added by hand', async () => {
    it.api.put(paths.stores, aStore('gold', { uri: it.place('gold') }));
    it.start(createStoresController);
    await eventually(ready).toBe('True');
    it.api.remove(paths.stores, 'gold');
    await eventually(() => it.core.stores.list().map(({ config }) => config.name)).not.toContain('gold');
    expect(it.core.stores.list().map(({ config }) => config.name)).toContain('silver');
  });

  test('that is invalid shows why, and does not affect others', async () => {
    it.api.put(paths.stores, aStore('gold', { uri: 'nfs://server/x', options: { colour: 'red' } }));
    it.api.put(paths.stores, aStore('tin', { uri: it.place('tin') }));
    it.start(createStoresController);
    await eventually(() => ready('tin')).toBe('True');
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
  ])('with %j, which pods cannot use, shows that at once', async (options, message) => {
    it.api.put(paths.stores, aStore('gold', { uri: it.place('gold'), options }));
    it.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'False', reason: 'Invalid', message } });
    expect(it.core.stores.list().map(({ config }) => config.name)).not.toContain('gold');
  });

  test('shows why its server refuses it, and that it is ready later', async () => {
    const uri = it.place('gold');
    const folder = uri.slice('nfs://server'.length);
    renameSync(folder, `${folder}-away`);
    it.api.put(paths.stores, aStore('gold', { uri }));
    const controller = it.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'False' }, Reachable: { status: 'False' } });
    const { message = '', lastTransitionTime } = (await conditions())['Ready'] ?? {};
    expect(message).toContain(folder);
    expect(lastTransitionTime).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    renameSync(`${folder}-away`, folder);
    controller.add('gold');
    await eventually(ready).toBe('True');
    const status = async () => (await it.list(storeObjects))[0]?.status;
    expect(await status()).toHaveProperty('capacity');
    renameSync(folder, `${folder}-away`);
    controller.add('gold');
    await eventually(ready).toBe('False');
    expect(await status()).not.toHaveProperty('capacity');
    const pass = async (): Promise<void> => {
      const { again } = controller.counts();
      controller.add('gold');
      await eventually(() => controller.counts().again).toBeGreaterThan(again);
    };
    // A reconcile in progress may have read the object before the last write, and writes it once more. It ends before two more reconciles do.
    await pass();
    await pass();
    // A reconcile that reads the cache before the cache has the last write would repeat it, too.
    const { resourceVersion } = (await it.list(storeObjects))[0]?.metadata ?? {};
    await eventually(() => it.caches.stores.get('gold')?.metadata.resourceVersion).toBe(resourceVersion);
    const before = it.changes().length;
    await pass();
    expect(it.changes()).toHaveLength(before);
  });

  test('on nodes shows what the agents report', async () => {
    it.api.put(paths.stores, aStore('disk', { uri: 'local:///srv/data' }));
    const answers = (isOpen: boolean) => (request: AgentRequest) => {
      const listed = { name: 'disk', kind: 'local', state: 'open', problem: null, volumes: 2, access: [], bytes: '0' };
      const steps = [{ step: 'look', ok: isOpen, detail: 'there is no directory', action: 'Make it.' }];
      const sizes = { totalBytes: '4096', freeBytes: '1024' };
      return request.path === '/v1/stores' ? { items: [listed] } : { steps, ...(isOpen ? sizes : {}) };
    };
    it.agents.connect('node-1', answers(true));
    it.agents.connect('node-2', answers(false));
    it.start(createStoresController);
    it.start(({ nodeStores }) => nodeStores);
    const oneNodeFails = 'Open on 1 of 2 nodes; node-2: there is no directory. Make it.';
    await eventually(() => conditions('disk')).toMatchObject({
      Ready: { status: 'True', reason: 'OnNodes', message: oneNodeFails },
      Reachable: { status: 'False', reason: 'NotOnAllNodes', message: oneNodeFails },
    });
    const [object] = await it.list(storeObjects);
    expect(object?.status).toMatchObject({ capacity: { total: '4Ki', free: '1Ki' }, volumes: 4 });
    it.agents.connect('node-2', answers(true));
    const allNodesOpen = { status: 'True', message: 'Open on 2 of 2 nodes' };
    await eventually(() => conditions('disk')).toMatchObject({ Ready: allNodesOpen, Reachable: allNodesOpen });
    it.agents.lose('node-1');
    it.agents.connect('node-2', answers(false));
    await eventually(() => conditions('disk')).toMatchObject({ Ready: { status: 'False', reason: 'OnNoNode' } });
  });

  test('on nodes is not opened by the controller', async () => {
    it.api.put(paths.stores, aStore('disk', { uri: 'local:///srv/data', storageClass: {} }));
    it.start(createStoresController);
    await eventually(() => conditions('disk')).toMatchObject({ Ready: { status: 'Unknown', reason: 'NoAgents' } });
    expect(it.core.stores.list().map(({ config }) => config.name)).not.toContain('disk');
    expect(await classes()).toMatchObject([
      { provisioner: 'local.stowage.dev', volumeBindingMode: 'WaitForFirstConsumer' },
    ]);
  });

  test('delays `whenConfigured`, which resolves also without any Store object', async () => {
    await it.start(createStoresController).whenConfigured();
  });
});

describe('the class of a store', () => {
  const wish = { reclaimPolicy: 'Retain', default: true, nameTemplate: '{name}', enforce: true };

  test('is created, kept, recreated and deleted as the Store object says', async () => {
    const uri = it.place('gold');
    const store = aStore('gold', { uri, storageClass: wish });
    it.api.put(paths.stores, store);
    it.start(createStoresController);
    await eventually(classes).toMatchObject([
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
    it.api.remove(paths.classes, 'gold');
    await eventually(async () => (await classes()).length).toBe(1);
    await eventually(async () => (await conditions())['StorageClass']?.status).toBe('True');
    it.api.put(paths.stores, aStore('gold', { uri, storageClass: { ...wish, reclaimPolicy: 'Delete' } }));
    await eventually(async () => (await classes()).map(({ reclaimPolicy }) => reclaimPolicy)).toEqual(['Delete']);
    it.api.put(paths.stores, aStore('gold', { uri, storageClass: { ...wish, name: 'other' } }));
    await eventually(async () => (await classes()).map(({ metadata }) => metadata.name)).toEqual(['other']);
    it.api.put(paths.stores, aStore('gold', { uri }));
    await eventually(classes).toEqual([]);
  });

  test('can be copied: a copy under another name is not touched', async () => {
    const uri = it.place('gold');
    it.api.put(paths.stores, aStore('gold', { uri, storageClass: {} }));
    it.start(createStoresController);
    await eventually(async () => (await classes()).length).toBe(1);
    const [made] = await classes();
    // With its labels, annotations and owner, as tools copy objects.
    const copy = { ...made, metadata: { ...made?.metadata, name: 'mine', uid: 'uid-of-mine' } };
    it.api.put(paths.classes, copy as unknown as AnyObject);
    it.api.put(paths.stores, aStore('gold', { uri, storageClass: { reclaimPolicy: 'Retain' } }));
    const policies = async () => (await classes()).map(({ metadata, reclaimPolicy }) => [metadata.name, reclaimPolicy]);
    await eventually(async () => (await policies()).find(([name]) => name === 'gold')).toEqual(['gold', 'Retain']);
    expect(await policies()).toContainEqual(['mine', 'Delete']);
  });

  test('is recreated for a new store of the same name, since Kubernetes deletes it with the old one', async () => {
    const store = aStore('gold', { uri: it.place('gold'), storageClass: {} });
    it.api.put(paths.stores, store);
    it.start(createStoresController);
    const owners = async () => (await classes()).map(({ metadata }) => metadata.ownerReferences?.[0]?.uid);
    await eventually(owners).toEqual(['uid-of-gold']);
    it.api.remove(paths.stores, 'gold');
    it.api.put(paths.stores, { ...store, metadata: { ...store.metadata, uid: 'another' } });
    await eventually(owners).toEqual(['another']);
  });

  test('of another provisioner with the same name stays unchanged, and the Store gets an Event', async () => {
    it.api.put(paths.classes, aClass('gold', { provisioner: 'other.example' }));
    it.api.put(paths.stores, aStore('gold', { uri: it.place('gold'), storageClass: {} }));
    it.start(createStoresController);
    await eventually(conditions).toMatchObject({ Ready: { status: 'True' }, StorageClass: { status: 'False' } });
    await eventually(() => it.notes('StorageClassTaken')).toHaveLength(1);
    expect(await classes()).toMatchObject([{ provisioner: 'other.example' }]);
    it.api.remove(paths.classes, 'gold');
    await eventually(classes).toMatchObject([{ provisioner: 'file.stowage.dev' }]);
  });
});
