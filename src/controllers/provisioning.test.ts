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

const it = controllerFixture();

const made = () => it.list(persistentVolumes);
const settled = async (): Promise<void> => {
  await eventually(() => it.caches.claims.synced && it.caches.classes.synced && it.caches.volumes.synced).toBe(true);
};

describe('a claim', () => {
  test('gets a PersistentVolume with the identity of the store on which the volume was created, even if the store changes meanwhile', async () => {
    const identity = it.core.stores.view('silver').store?.identity;
    const gate = it.nfs.close('create', { deaf: true });
    it.api.put(paths.classes, aClass('fast'));
    it.start(createProvisioning);
    it.api.put(paths.claims, aClaim('cart'));
    await gate.reached;
    // The change waits for operations in flight, and hides the store from now on.
    const removing = it.core.stores.remove('silver', aCall());
    await eventually(() => it.core.stores.list().some(({ store }) => store?.identity === identity)).toBe(false);
    gate.open();
    await removing;
    await eventually(async () => (await made()).map(({ metadata }) => metadata.annotations)).toMatchObject([
      { 'stowage.dev/store-identity': identity },
    ]);
  });

  test('gets a volume and its own PersistentVolume with two requests', async () => {
    it.api.put(paths.classes, aClass('fast', { mountOptions: ['nosuid'] }));
    it.start(createProvisioning);
    await settled();
    it.api.put(
      paths.claims,
      aClaim('cart', { accessModes: ['ReadWriteMany'] }, { labels: { team: 'red', 'stowage.dev/x': '1' } }),
    );
    await eventually(() => it.notes('ProvisioningSucceeded')).toEqual(["Created volume 'silver/pvc-uid-of-cart'"]);
    const [volume] = await it.volumes();
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
        'stowage.dev/cluster': it.core.instance,
      },
    });
    expect(volume?.labels).not.toHaveProperty('stowage.dev/x');
    expect(await made()).toMatchObject([
      {
        metadata: {
          name: 'pvc-uid-of-cart',
          annotations: {
            'pv.kubernetes.io/provisioned-by': 'file.stowage.dev',
            'stowage.dev/store-identity': it.core.stores.view('silver').store?.identity ?? 'none',
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
    expect(it.changes()).toEqual([
      'POST /api/v1/persistentvolumes',
      'POST /apis/events.k8s.io/v1/namespaces/shop/events',
    ]);
    // The controller sent no other requests than its watches.
    expect(it.api.requests.filter((one) => one.startsWith('GET') && one.includes('uid-of-cart'))).toEqual([]);
  });

  test('gets the volume that a controller created before it died', async () => {
    const spec = {
      store: 'silver',
      name: 'pvc-uid-of-cart',
      bytes: 1n << 30n,
      access: undefined,
      labels: { old: 'x' },
    };
    const before = await it.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(made).toMatchObject([{ spec: { csi: { volumeHandle: before.id } } }]);
    expect(await it.volumes()).toHaveLength(1);
  });

  test('gets its volume completed if a controller was killed after it wrote only the record', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    const before = await it.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    rmdirSync(join(it.silver, 'pvc-uid-of-cart'));
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(made).toMatchObject([{ spec: { csi: { volumeHandle: before.id } } }]);
    expect(readdirSync(it.silver)).toContain('pvc-uid-of-cart');
  });

  test('gets another volume if another host deleted the first before it had a PersistentVolume', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    const before = await it.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    const other = await startServer({ listen: 'none', kinds: [...it.parts.kinds.values()] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    await other.core.stores.add('silver', `nfs://server${it.silver}`, aCall());
    await other.core.deletions.delete(before.id, undefined, aCall(), { destroy: true });
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(made).toHaveLength(1);
    const [{ id } = expect.fail('there is none')] = await it.volumes();
    expect(await made()).toMatchObject([{ spec: { csi: { volumeHandle: id } } }]);
    expect(readdirSync(it.silver)).toContain('pvc-uid-of-cart');
  });

  test('gets the volume that was created when its class named another store', async () => {
    await it.core.stores.add('gold', it.place('gold'), aCall());
    const spec = { store: 'gold', name: 'x', bytes: 1n << 30n, access: undefined, labels: {} };
    const before = await it.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(made).toMatchObject([{ spec: { csi: { volumeHandle: before.id } } }]);
    expect(await it.volumes()).toEqual([]);
  });

  test('gets the volume that another controller created, even if the catalogue does not have it yet', async () => {
    const other = await startServer({ listen: 'none', kinds: [...it.parts.kinds.values()] });
    onTestFinished(() => other[Symbol.asyncDispose]());
    await other.core.stores.add('silver', `nfs://server${it.silver}`, aCall());
    const spec = {
      store: 'silver',
      name: 'pvc-uid-of-cart',
      bytes: 1n << 30n,
      access: undefined,
      labels: { old: 'x' },
    };
    const before = await other.core.volumes.create(spec, aCall({ requestId: 'uid-of-cart' }));
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(made).toMatchObject([{ spec: { csi: { volumeHandle: before.id } } }]);
  });

  test('gets an Event if another volume has its name', async () => {
    const spec = { store: 'silver', name: 'pvc-uid-of-cart', bytes: 1n << 30n, access: undefined, labels: {} };
    await it.core.volumes.create(spec, aCall());
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toContain('pvc-uid-of-cart');
    expect(await made()).toEqual([]);
  });

  test('gets no second PersistentVolume while the cache does not have the first yet', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      it.api.refuse(response, 409, 'AlreadyExists');
      return true;
    };
    it.start(createProvisioning);
    await eventually(() => it.notes('ProvisioningSucceeded')).toHaveLength(1);
  });

  test('gets no second PersistentVolume when the answer to the creation of the first was lost', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    let lost = 0;
    it.api.intercept = ({ method, url }, response, body) => {
      if (method !== 'POST' || url !== paths.volumes || lost > 0) return false;
      lost++;
      it.api.put(paths.volumes, JSON.parse(body));
      response.socket?.destroy();
      return true;
    };
    it.start(createProvisioning);
    await eventually(() => lost).toBe(1);
    await eventually(async () => (await made()).length).toBe(1);
    expect(await it.volumes()).toHaveLength(1);
  });

  test('is not provisioned twice when it changes before the watch delivers its PersistentVolume', async () => {
    it.api.put(paths.classes, aClass());
    const told: unknown[] = [];
    it.api.intercept = ({ method, url = '' }, response) => {
      // The list is answered, but the watch reports no changes.
      if (method !== 'GET' || !url.startsWith(`${paths.volumes}?`) || !url.includes('watch=true')) return false;
      response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
      told.push(response);
      return true;
    };
    const controller = it.start(createProvisioning);
    await settled();
    await eventually(() => told.length).toBe(1);
    it.api.put(paths.claims, aClaim('cart'));
    await eventually(() => it.notes('ProvisioningSucceeded')).toHaveLength(1);
    const before = controller.counts().again;
    // Kubernetes sets this annotation if it has found no existing volume.
    it.api.put(paths.claims, aClaim('cart', {}, { annotations: { 'volume.kubernetes.io/storage-provisioner': 'x' } }));
    await eventually(() => controller.counts().again).toBe(before + 1);
    expect(it.changes().filter((one) => one === `POST ${paths.volumes}`)).toHaveLength(1);
  });

  test('is not reconciled when it changes after it was bound', async () => {
    it.api.put(paths.classes, aClass());
    const controller = it.start(createProvisioning);
    await settled();
    const claimRef = { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' };
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'x' };
    for (const phase of ['Pending', 'Bound']) {
      const volume = { metadata: { name: 'pvc-uid-of-cart' }, spec: { storageClassName: 'fast', claimRef, csi } };
      it.api.put(paths.volumes, { ...volume, status: { phase } });
      it.api.put(paths.claims, { ...aClaim('cart', { volumeName: 'pvc-uid-of-cart' }), status: { phase } });
    }
    await eventually(() => it.caches.claims.get('shop/cart')?.status?.phase).toBe('Bound');
    await eventually(() => it.caches.volumes.get('pvc-uid-of-cart')?.status?.phase).toBe('Bound');
    expect(controller.counts()).toMatchObject({ done: 0, again: 0, waiting: 0, running: 0 });
  });

  test('of a class with WaitForFirstConsumer waits until a node is selected', async () => {
    it.api.put(paths.classes, aClass('fast', { volumeBindingMode: 'WaitForFirstConsumer' }));
    it.api.put(paths.claims, aClaim('cart'));
    const controller = it.start(createProvisioning);
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect(await it.volumes()).toEqual([]);
    const annotations = { 'volume.kubernetes.io/selected-node': 'node-1' };
    it.api.put(paths.claims, aClaim('cart', {}, { annotations }));
    await eventually(async () => (await made()).length).toBe(1);
  });

  test('waits while Kubernetes may bind an existing PersistentVolume to it', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.volumes, { metadata: { name: 'by-hand' }, spec: { storageClassName: 'fast', nfs: {} } });
    it.api.put(paths.claims, aClaim('cart'));
    const controller = it.start(createProvisioning);
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect(await it.volumes()).toEqual([]);
    const annotations = { 'volume.kubernetes.io/storage-provisioner': 'file.stowage.dev' };
    it.api.put(paths.claims, aClaim('cart', {}, { annotations }));
    await eventually(async () => (await it.volumes()).length).toBe(1);
  });

  test('gets the node affinity of the allowed topologies of its class', async () => {
    const matchLabelExpressions = [{ key: 'zone', values: ['a', 'b'] }];
    it.api.put(paths.classes, aClass('fast', { allowedTopologies: [{ matchLabelExpressions }] }));
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    const term = { matchExpressions: [{ key: 'zone', operator: 'In', values: ['a', 'b'] }] };
    await eventually(made).toMatchObject([{ spec: { nodeAffinity: { required: { nodeSelectorTerms: [term] } } } }]);
  });

  test('names its volume by the template of its class', async () => {
    const nameTemplate = '{namespace}-{name}-{label:app.example/team}-{annotation:x}';
    it.api.put(paths.classes, aClass('fast', { parameters: { store: 'silver', nameTemplate } }));
    const metadata = { labels: { 'app.example/team': 'red' }, annotations: { x: 'y' } };
    it.api.put(paths.claims, aClaim('cart', {}, metadata));
    it.start(createProvisioning);
    await eventually(async () => (await it.volumes()).map(({ name }) => name)).toEqual(['shop-cart-red-y']);
  });

  test.each<[string, object, object, string]>([
    [
      'with mount options that no mount is given',
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
      'without what the template wants',
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
    it.api.put(paths.classes, aClass('fast', kind));
    it.api.put(paths.claims, aClaim('cart', spec));
    it.start(createProvisioning);
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toContain(note);
    expect([await it.volumes(), await made()]).toEqual([[], []]);
  });

  test('gets an Event about a missing permission when the server stops allowing this host', async () => {
    const own = await startOwnServer({ path: '/export' });
    const kind = createNfsStoreKind();
    const server = await startServer({ listen: 'none', kinds: [createLocalStoreKind(), kind] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const { core } = server;
    const { port } = own.server;
    await core.stores.add('silver', `nfs://127.0.0.1/export?port=${port}&mountport=${port}&timeout=1s`, aCall());
    const file = createCoreProvisioner(core, createWhyNotOpen(it.caches.stores, new Map([['nfs', kind]])));
    await own.restart({ networks: ['192.0.2.0/24'] });
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning, { core, provisioners: new Map([[file.driver, file]]) });
    await eventually(async () => (await it.notes('ProvisioningFailed')).join()).toContain(
      'the server of the store ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem. Ask the administrator to grant Stowage access',
    );
    expect((await it.notes('ProvisioningFailed')).join()).not.toMatch(/127\.0\.0\.1|did not answer in time/);
  });

  test('with a volume populator is left to it, with an Event', async () => {
    it.api.put(paths.classes, aClass('fast'));
    const dataSourceRef = { apiGroup: 'hello.example', kind: 'Hello', name: 'greeting' };
    it.api.put(paths.claims, aClaim('cart', { dataSourceRef }));
    it.start(createProvisioning);
    await eventually(() => it.notes('WaitForPopulator')).toEqual([
      "The claim waits for the volume populator of Hello 'greeting': Stowage does not create its volume",
    ]);
    expect([await it.volumes(), await made(), await it.notes('ProvisioningFailed')]).toEqual([[], [], []]);
  });

  test('gets its volume when its class is corrected', async () => {
    it.api.put(paths.classes, aClass('fast', { parameters: { store: 'gold' } }));
    it.api.put(paths.claims, aClaim('cart'));
    it.start(createProvisioning);
    await eventually(async () => (await it.notes('ProvisioningFailed')).length).toBe(1);
    it.api.remove(paths.classes, 'fast');
    it.api.put(paths.classes, aClass());
    await eventually(async () => (await made()).length).toBe(1);
  });

  test.each<[string, object, object]>([
    ['of another provisioner', { provisioner: 'other.example' }, {}],
    ['that has a volume', {}, { volumeName: 'x' }],
    ['of no class', {}, { storageClassName: '' }],
  ])('%s is left alone', async (_, kind, spec) => {
    it.api.put(paths.classes, aClass('fast', kind));
    it.api.put(paths.claims, aClaim('cart', spec));
    const controller = it.start(createProvisioning);
    controller.add('shop/cart');
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect([await it.volumes(), await made(), it.changes()]).toEqual([[], [], []]);
  });
});

test('claims of a silent store do not delay other claims', async () => {
  await it.core.stores.add('gold', it.place('gold'), aCall());
  it.nfs.close('create', { store: 'gold' });
  it.api.put(paths.classes, aClass());
  it.api.put(paths.classes, aClass('slow', { parameters: { store: 'gold' } }));
  for (let n = 0; n < 100; n++) it.api.put(paths.claims, aClaim(`slow-${n}`, { storageClassName: 'slow' }));
  it.api.put(paths.claims, aClaim('cart'));
  it.start(createProvisioning);
  await eventually(async () => (await made()).map(({ metadata }) => metadata.name)).toEqual(['pvc-uid-of-cart']);
});

test('each of many claims gets exactly one volume', async () => {
  it.api.put(paths.classes, aClass());
  for (let n = 0; n < 40; n++) it.api.put(paths.claims, aClaim(`c${n}`));
  it.start(createProvisioning);
  await eventually(async () => (await made()).length).toBe(40);
  expect(new Set((await it.volumes()).map(({ requestId }) => requestId)).size).toBe(40);
  await eventually(() => it.changes().length).toBe(80);
});
