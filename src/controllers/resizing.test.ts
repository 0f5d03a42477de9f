import { expect, test } from 'vitest';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import { createResizing } from './resizing.ts';

const it = controllerFixture();
const mib = 1n << 20n;

async function aPair(status: object, { enforce = false, wants = '2Mi', has = '1Mi', handle = '' } = {}) {
  const spec = { store: 'silver', name: 'a', bytes: mib, enforce, access: undefined, labels: {} };
  const { id } = await it.core.volumes.create(spec, aCall());
  it.api.put(paths.volumes, {
    metadata: { name: 'pvc-1' },
    spec: {
      capacity: { storage: has },
      claimRef: { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' },
      csi: { driver: 'file.stowage.dev', volumeHandle: handle || id, volumeAttributes: { store: 'silver' } },
    },
    status: { phase: 'Bound' },
  });
  const claim = aClaim('cart', { volumeName: 'pvc-1', resources: { requests: { storage: wants } } });
  it.api.put(paths.claims, { ...claim, status: { phase: 'Bound', capacity: { storage: '1Mi' }, ...status } });
}

const other = { type: 'Other', status: 'True' };
const resizing = { type: 'Resizing', status: 'True' };

test('the volume of a claim that requests more is expanded', async () => {
  await aPair({ conditions: [other, resizing] });
  it.start(createResizing);
  await eventually(() => it.notes('VolumeResizeSuccessful')).toEqual(['Expanded the volume to 2Mi']);
  expect(await it.volumes()).toMatchObject([{ bytes: 2n * mib }]);
  expect(await it.list(persistentVolumes)).toMatchObject([{ spec: { capacity: { storage: '2Mi' } } }]);
  const [claim] = await it.list(claims);
  expect(claim?.status).toEqual({
    phase: 'Bound',
    capacity: { storage: '2Mi' },
    allocatedResources: { storage: '2Mi' },
    conditions: [other],
  });
  expect(it.changes()).toHaveLength(3);
});

test('a claim whose nodes have to expand the volume too waits for them with a condition', async () => {
  await aPair({}, { enforce: true });
  const controller = it.start(createResizing);
  await eventually(() => it.notes('VolumeResizeSuccessful')).toHaveLength(1);
  const [claim] = await it.list(claims);
  expect(claim?.status).toMatchObject({
    capacity: { storage: '1Mi' },
    allocatedResources: { storage: '2Mi' },
    allocatedResourceStatuses: { storage: 'NodeResizePending' },
    conditions: [{ type: 'FileSystemResizePending', status: 'True' }],
  });
  const before = it.changes().length;
  controller.add('shop/cart');
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(it.changes()).toHaveLength(before);
});

test('a volume to which its PersistentVolume refers by a bare name is not expanded', async () => {
  await aPair({}, { handle: 'a' });
  it.start(createResizing);
  await eventually(async () => (await it.notes('VolumeResizeFailed')).join()).toContain("there is no volume 'a'");
  expect(await it.volumes()).toMatchObject([{ bytes: mib }]);
});

test('an expansion that was interrupted before the update of the claim is finished', async () => {
  await aPair({}, { has: '2Mi' });
  it.start(createResizing);
  await eventually(() => it.list(claims)).toMatchObject([{ status: { capacity: { storage: '2Mi' } } }]);
});

test.each<[string, Parameters<typeof aPair>[1]]>([
  ['has what it requests', { wants: '1Mi' }],
  ['requests less', { wants: '1Ki' }],
])('a claim that %s is left alone', async (_, sizes) => {
  await aPair({}, sizes);
  const controller = it.start(createResizing);
  await eventually(() => it.caches.claims.synced && it.caches.volumes.synced).toBe(true);
  expect(controller.counts()).toMatchObject({ done: 0, waiting: 0, running: 0 });
  controller.add('shop/cart');
  await eventually(() => controller.counts().done).toBeGreaterThan(0);
  expect(it.changes()).toEqual([]);
});

test('a claim that was just bound and has no capacity yet is left alone', async () => {
  await aPair({ capacity: undefined }, { wants: '1Mi' });
  const controller = it.start(createResizing);
  await eventually(() => it.caches.claims.synced && it.caches.volumes.synced).toBe(true);
  expect(controller.counts()).toMatchObject({ done: 0, waiting: 0, running: 0 });
  controller.add('shop/cart');
  await eventually(() => controller.counts().done).toBeGreaterThan(0);
  expect(it.changes()).toEqual([]);
});

test('a claim gets an Event if there is no space, and nothing changes', async () => {
  await it.core.stores.add('small', `${it.place('small')}?maxBytes=1M`, aCall());
  await aPair({});
  const { id } = await it.core.volumes.create(
    { store: 'small', name: 'b', bytes: mib, access: undefined, labels: {} },
    aCall(),
  );
  const [object] = await it.list(persistentVolumes);
  const csi = { driver: 'file.stowage.dev', volumeHandle: id, volumeAttributes: { store: 'small' } };
  it.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { ...object?.spec, csi } });
  it.start(createResizing);
  await eventually(async () => (await it.notes('VolumeResizeFailed')).join()).toContain('small');
  expect(await it.list(persistentVolumes)).toMatchObject([{ spec: { capacity: { storage: '1Mi' } } }]);
});
