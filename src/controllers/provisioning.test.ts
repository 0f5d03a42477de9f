import { readdirSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aClaim, aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { startServer } from '#testing/server.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import { createCoreProvisioner, createWhyNotOpen } from './provisioner.ts';
import { createProvisioning } from './provisioning.ts';

const fixture = controllerFixture();

const listPersistentVolumes = () => fixture.list(persistentVolumes);
const waitForCaches = async (): Promise<void> => {
  await eventually(
    () => fixture.caches.claims.synced && fixture.caches.classes.synced && fixture.caches.volumes.synced,
  ).toBe(true);
};

describe('a claim', () => {
  test('gets a PersistentVolume with the identity of the store on which the volume was created, even if the store changes meanwhile', async () => {
    const identity = fixture.core.stores.view('silver').store?.identity;
    const gate = fixture.nfs.close('create', { deaf: true });
    fixture.api.put(paths.classes, aClass('fast'));
    fixture.start(createProvisioning);
    fixture.api.put(paths.claims, aClaim('cart'));
    await gate.reached;
    // The removal waits for operations in flight, and hides the store from now on.
    const removing = fixture.core.stores.remove('silver', aCall());
    await eventually(() => fixture.core.stores.list().some(({ store }) => store?.identity === identity)).toBe(false);
    gate.open();
    await removing;
    await eventually(async () =>
      (await listPersistentVolumes()).map(({ metadata }) => metadata.annotations),
    ).toMatchObject([{ 'stowage.dev/store-identity': identity }]);
  });

  test('gets a volume and its own PersistentVolume with two requests', async () => {
    fixture.api.put(paths.classes, aClass('fast', { mountOptions: ['nosuid'] }));
    fixture.start(createProvisioning);
    await waitForCaches();
    fixture.api.put(
      paths.claims,
      aClaim('cart', { accessModes: ['ReadWriteMany'] }, { labels: { team: 'red', 'stowage.dev/x': '1' } }),
    );
    await eventually(() => fixture.notes('ProvisioningSucceeded')).toEqual(["Created volume 'silver/pvc-uid-of-cart'"]);
    const [volume] = await fixture.volumes();
    expect(volume).toMatchObject({
      name: 'pvc-uid-of-cart',
      bytes: 1n << 30n,
      requestId: 'uid-of-cart',
      access: 'filesystem',
      labels: {
        team: 'red',
        'stowage.dev/claim-namespace': 'shop',
        'stowage.dev/claim-name': 'cart',
        'stowage.dev/claim-uid': 'uid-of-cart',
        'stowage.dev/cluster': fixture.core.instance,
      },
    });
    expect(volume?.labels).not.toHaveProperty('stowage.dev/x');
    expect(await listPersistentVolumes()).toMatchObject([
      {
        metadata: {
          name: 'pvc-uid-of-cart',
          annotations: {
            'pv.kubernetes.io/provisioned-by': 'file.stowage.dev',
            'stowage.dev/store-identity': fixture.core.stores.view('silver').store?.identity ?? 'none',
          },
          finalizers: ['stowage.dev/volume'],
        },
        spec: {
          capacity: { storage: '1Gi' },
          accessModes: ['ReadWriteMany'],
          volumeMode: 'Filesystem',
          persistentVolumeReclaimPolicy: 'Delete',
          storageClassName: 'fast',
          mountOptions: ['nosuid'],
          claimRef: { kind: 'PersistentVolumeClaim', namespace: 'shop', name: 'cart', uid: 'uid-of-cart' },
          csi: {
            driver: 'file.stowage.dev',
            volumeHandle: volume?.id,
            volumeAttributes: { store: 'silver', name: 'pvc-uid-of-cart' },
          },
        },
      },
    ]);
    expect(fixture.changes()).toEqual([
      'POST /api/v1/persistentvolumes',
      'POST /apis/events.k8s.io/v1/namespaces/shop/events',
    ]);
    // The controller sent no other requests than its watches.
    expect(fixture.api.requests.filter((one) => one.startsWith('GET') && one.includes('uid-of-cart'))).toEqual([]);
  });

  test('gets the volume that a controller created before it died', async () => {
    const spec = {
      store: 'silver',
      name: 'pvc-uid-of-cart',
      bytes: 1n << 30n,
      access: undefined,
      labels: { old: 'x' },
    };
    const existing = await fixture.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(listPersistentVolumes).toMatchObject([{ spec: { csi: { volumeHandle: existing.id } } }]);
    expect(await fixture.volumes()).toHaveLength(1);
  });

  test('gets a complete volume if a controller was killed after it had written only the record', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    const existing = await fixture.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    rmdirSync(join(fixture.silverFolder, 'pvc-uid-of-cart'));
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(listPersistentVolumes).toMatchObject([{ spec: { csi: { volumeHandle: existing.id } } }]);
    expect(readdirSync(fixture.silverFolder)).toContain('pvc-uid-of-cart');
  });

  test('gets another volume if another host deleted the first volume before it had a PersistentVolume', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    const existing = await fixture.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    const other = await startServer({ listen: 'none', kinds: [...fixture.parts.kinds.values()] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    await other.core.stores.add('silver', `nfs://server${fixture.silverFolder}`, aCall());
    await other.core.deletions.delete(existing.id, undefined, aCall(), { destroy: true });
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(listPersistentVolumes).toHaveLength(1);
    const [{ id } = expect.fail('there is none')] = await fixture.volumes();
    expect(await listPersistentVolumes()).toMatchObject([{ spec: { csi: { volumeHandle: id } } }]);
    expect(readdirSync(fixture.silverFolder)).toContain('pvc-uid-of-cart');
  });

  test('gets the volume that was created when its class named another store', async () => {
    await fixture.core.stores.add('gold', fixture.newStoreUri('gold'), aCall());
    const spec = { store: 'gold', name: 'x', bytes: 1n << 30n, access: undefined, labels: {} };
    const existing = await fixture.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(listPersistentVolumes).toMatchObject([{ spec: { csi: { volumeHandle: existing.id } } }]);
    expect(await fixture.volumes()).toEqual([]);
  });

  test('gets the volume that another controller created, even if the catalogue does not have it yet', async () => {
    const other = await startServer({ listen: 'none', kinds: [...fixture.parts.kinds.values()] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    await other.core.stores.add('silver', `nfs://server${fixture.silverFolder}`, aCall());
    const spec = {
      store: 'silver',
      name: 'pvc-uid-of-cart',
      bytes: 1n << 30n,
      access: undefined,
      labels: { old: 'x' },
    };
    const existing = await other.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(listPersistentVolumes).toMatchObject([{ spec: { csi: { volumeHandle: existing.id } } }]);
  });

  test('gets an Event if another volume has its name', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    await fixture.core.volumes.create(spec, aCall());
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toContain('pvc-uid-of-cart');
    expect(await listPersistentVolumes()).toEqual([]);
  });

  test('gets no second PersistentVolume while the cache does not have the first yet', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      fixture.api.refuse(response, 409, 'AlreadyExists');
      return true;
    };
    fixture.start(createProvisioning);
    await eventually(() => fixture.notes('ProvisioningSucceeded')).toHaveLength(1);
  });

  test('gets no second PersistentVolume when the answer to the creation of the first was lost', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    let lostAnswers = 0;
    fixture.api.intercept = ({ method, url }, response, body) => {
      if (method !== 'POST' || url !== paths.volumes || lostAnswers > 0) return false;
      lostAnswers++;
      fixture.api.put(paths.volumes, JSON.parse(body));
      response.socket?.destroy();
      return true;
    };
    fixture.start(createProvisioning);
    await eventually(() => lostAnswers).toBe(1);
    await eventually(async () => (await listPersistentVolumes()).length).toBe(1);
    expect(await fixture.volumes()).toHaveLength(1);
  });

  test('is not provisioned twice when it changes before the watch delivers its PersistentVolume', async () => {
    fixture.api.put(paths.classes, aClass());
    const heldWatches: unknown[] = [];
    fixture.api.intercept = ({ method, url = '' }, response) => {
      // The list is answered, but the watch reports no changes.
      if (method !== 'GET' || !url.startsWith(`${paths.volumes}?`) || !url.includes('watch=true')) return false;
      response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
      heldWatches.push(response);
      return true;
    };
    const controller = fixture.start(createProvisioning);
    await waitForCaches();
    await eventually(() => heldWatches.length).toBe(1);
    fixture.api.put(paths.claims, aClaim('cart'));
    await eventually(() => fixture.notes('ProvisioningSucceeded')).toHaveLength(1);
    const before = controller.counts().again;
    // Kubernetes sets this annotation if it has found no existing volume.
    fixture.api.put(
      paths.claims,
      aClaim('cart', {}, { annotations: { 'volume.kubernetes.io/storage-provisioner': 'x' } }),
    );
    await eventually(() => controller.counts().again).toBe(before + 1);
    expect(fixture.changes().filter((one) => one === `POST ${paths.volumes}`)).toHaveLength(1);
  });

  test('is not reconciled when it changes after it was bound', async () => {
    fixture.api.put(paths.classes, aClass());
    const controller = fixture.start(createProvisioning);
    await waitForCaches();
    const claimRef = { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' };
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'x' };
    for (const phase of ['Pending', 'Bound']) {
      const volume = { metadata: { name: 'pvc-uid-of-cart' }, spec: { storageClassName: 'fast', claimRef, csi } };
      fixture.api.put(paths.volumes, { ...volume, status: { phase } });
      fixture.api.put(paths.claims, { ...aClaim('cart', { volumeName: 'pvc-uid-of-cart' }), status: { phase } });
    }
    await eventually(() => fixture.caches.claims.get('shop/cart')?.status?.phase).toBe('Bound');
    await eventually(() => fixture.caches.volumes.get('pvc-uid-of-cart')?.status?.phase).toBe('Bound');
    expect(controller.counts()).toMatchObject({ done: 0, again: 0, waiting: 0, running: 0 });
  });

  test('of a class with WaitForFirstConsumer waits until a node is selected', async () => {
    fixture.api.put(paths.classes, aClass('fast', { volumeBindingMode: 'WaitForFirstConsumer' }));
    fixture.api.put(paths.claims, aClaim('cart'));
    const controller = fixture.start(createProvisioning);
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect(await fixture.volumes()).toEqual([]);
    const annotations = { 'volume.kubernetes.io/selected-node': 'node-1' };
    fixture.api.put(paths.claims, aClaim('cart', {}, { annotations }));
    await eventually(async () => (await listPersistentVolumes()).length).toBe(1);
  });

  test('waits while Kubernetes may bind an existing PersistentVolume to it', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { storageClassName: 'fast', nfs: {} } });
    fixture.api.put(paths.claims, aClaim('cart'));
    const controller = fixture.start(createProvisioning);
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect(await fixture.volumes()).toEqual([]);
    const annotations = { 'volume.kubernetes.io/storage-provisioner': 'file.stowage.dev' };
    fixture.api.put(paths.claims, aClaim('cart', {}, { annotations }));
    await eventually(async () => (await fixture.volumes()).length).toBe(1);
  });

  test('gets the node affinity of the allowed topologies of its class', async () => {
    const matchLabelExpressions = [{ key: 'zone', values: ['a', 'b'] }];
    fixture.api.put(paths.classes, aClass('fast', { allowedTopologies: [{ matchLabelExpressions }] }));
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    const term = { matchExpressions: [{ key: 'zone', operator: 'In', values: ['a', 'b'] }] };
    await eventually(listPersistentVolumes).toMatchObject([
      { spec: { nodeAffinity: { required: { nodeSelectorTerms: [term] } } } },
    ]);
  });

  test('names its volume by the template of its class', async () => {
    const nameTemplate = '{namespace}-{name}-{label:app.example/team}-{annotation:x}';
    fixture.api.put(paths.classes, aClass('fast', { parameters: { store: 'silver', nameTemplate } }));
    const metadata = { labels: { 'app.example/team': 'red' }, annotations: { x: 'y' } };
    fixture.api.put(paths.claims, aClaim('cart', {}, metadata));
    fixture.start(createProvisioning);
    await eventually(async () => (await fixture.volumes()).map(({ name }) => name)).toEqual(['shop-cart-red-y']);
  });

  test.each<[string, object, object, string]>([
    [
      'with unsupported mount options',
      { mountOptions: ['nosuid', 'nodev,vers=4.1'] },
      {},
      "class 'fast' has mountOptions that Stowage does not support. Allowed are: defaults, rw, ro, nosuid, nodev. Options of the connection to a store belong in the Store object",
    ],
    [
      'with an unknown parameter',
      { parameters: { store: 'silver', colour: 'red' } },
      {},
      "class 'fast' has the unknown parameter 'colour'. Allowed are: store, nameTemplate, enforce.",
    ],
    [
      'with a wrong value',
      { parameters: { store: 'silver', enforce: 'yes' } },
      {},
      "'yes' is not a valid value for enforce",
    ],
    ['of a store that does not exist', { parameters: { store: 'gold' } }, {}, "there is no store 'gold' for the class"],
    ['with a wrong template', { parameters: { nameTemplate: '{x}' } }, {}, "'{x}' is not a valid name template"],
    ['with half a template', { parameters: { nameTemplate: '{name' } }, {}, "'{name' is not a valid name template"],
    [
      'without a label that the template needs',
      { parameters: { nameTemplate: '{label:team}' } },
      {},
      "the class names volumes by the label 'team', which the claim does not have. Add it to the claim.",
    ],
    [
      'whose volume name would be invalid',
      { parameters: { nameTemplate: '..{name}' } },
      {},
      "would be called '..cart'",
    ],
    ['with a data source', {}, { dataSource: { kind: 'PersistentVolumeClaim', name: 'a' } }, 'has a dataSource'],
    [
      'with a snapshot as its source',
      {},
      { dataSourceRef: { apiGroup: 'snapshot.storage.k8s.io', kind: 'VolumeSnapshot', name: 'a' } },
      'has a dataSource',
    ],
    ['with a selector', {}, { selector: { matchLabels: { a: 'b' } } }, 'has a selector'],
    ['for a block device', {}, { volumeMode: 'Block' }, "store 'silver' has no block volumes"],
  ])('%s gets an Event, waits, and leaves no volume behind', async (_, kind, spec, note) => {
    fixture.api.put(paths.classes, aClass('fast', kind));
    fixture.api.put(paths.claims, aClaim('cart', spec));
    fixture.start(createProvisioning);
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toContain(note);
    expect([await fixture.volumes(), await listPersistentVolumes()]).toEqual([[], []]);
  });

  test('gets an Event about a missing permission when the server stops allowing this host', async () => {
    const nfsServer = await startOwnServer({ path: '/export' });
    const kind = createNfsStoreKind();
    const server = await startServer({ listen: 'none', kinds: [createLocalStoreKind(), kind] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const { core } = server;
    const { port } = nfsServer.server;
    await core.stores.add('silver', `nfs://127.0.0.1/export?port=${port}&mountport=${port}&timeout=1s`, aCall());
    const file = createCoreProvisioner(core, createWhyNotOpen(fixture.caches.stores, new Map([['nfs', kind]])));
    await nfsServer.restart({ networks: ['192.0.2.0/24'] });
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning, { core, provisioners: new Map([[file.driver, file]]) });
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).join()).toContain(
      'the server of the store ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem. Ask the administrator to grant Stowage access',
    );
    expect((await fixture.notes('ProvisioningFailed')).join()).not.toMatch(/127\.0\.0\.1|did not answer in time/);
  });

  test('with a volume populator gets an Event, and no volume from Stowage', async () => {
    fixture.api.put(paths.classes, aClass('fast'));
    const dataSourceRef = { apiGroup: 'hello.example', kind: 'Hello', name: 'greeting' };
    fixture.api.put(paths.claims, aClaim('cart', { dataSourceRef }));
    fixture.start(createProvisioning);
    await eventually(() => fixture.notes('WaitForPopulator')).toEqual([
      "The claim waits for the volume populator of Hello 'greeting': Stowage does not create its volume",
    ]);
    expect([await fixture.volumes(), await listPersistentVolumes(), await fixture.notes('ProvisioningFailed')]).toEqual(
      [[], [], []],
    );
  });

  test('gets its volume when its class is corrected', async () => {
    fixture.api.put(paths.classes, aClass('fast', { parameters: { store: 'gold' } }));
    fixture.api.put(paths.claims, aClaim('cart'));
    fixture.start(createProvisioning);
    await eventually(async () => (await fixture.notes('ProvisioningFailed')).length).toBe(1);
    fixture.api.remove(paths.classes, 'fast');
    fixture.api.put(paths.classes, aClass());
    await eventually(async () => (await listPersistentVolumes()).length).toBe(1);
  });

  test.each<[string, object, object]>([
    ['of another provisioner', { provisioner: 'other.example' }, {}],
    ['that has a volume', {}, { volumeName: 'x' }],
    ['of no class', {}, { storageClassName: '' }],
  ])('%s is not changed', async (_, kind, spec) => {
    fixture.api.put(paths.classes, aClass('fast', kind));
    fixture.api.put(paths.claims, aClaim('cart', spec));
    const controller = fixture.start(createProvisioning);
    controller.add('shop/cart');
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect([await fixture.volumes(), await listPersistentVolumes(), fixture.changes()]).toEqual([[], [], []]);
  });
});

test('claims of a silent store do not delay other claims', async () => {
  await fixture.core.stores.add('gold', fixture.newStoreUri('gold'), aCall());
  fixture.nfs.close('create', { store: 'gold' });
  fixture.api.put(paths.classes, aClass());
  fixture.api.put(paths.classes, aClass('slow', { parameters: { store: 'gold' } }));
  for (let n = 0; n < 100; n++) fixture.api.put(paths.claims, aClaim(`slow-${n}`, { storageClassName: 'slow' }));
  fixture.api.put(paths.claims, aClaim('cart'));
  fixture.start(createProvisioning);
  await eventually(async () => (await listPersistentVolumes()).map(({ metadata }) => metadata.name)).toEqual([
    'pvc-uid-of-cart',
  ]);
});

test('each of many claims gets exactly one volume', async () => {
  fixture.api.put(paths.classes, aClass());
  for (let n = 0; n < 40; n++) fixture.api.put(paths.claims, aClaim(`c${n}`));
  fixture.start(createProvisioning);
  await eventually(async () => (await listPersistentVolumes()).length).toBe(40);
  expect(new Set((await fixture.volumes()).map(({ requestId }) => requestId)).size).toBe(40);
  await eventually(() => fixture.changes().length).toBe(80);
});
