import { expect, test } from 'vitest';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import { createResizing } from './resizing.ts';

const fixture = controllerFixture();
const mib = 1n << 20n;

async function putBoundClaim(status: object, { enforce = false, wants = '2Mi', has = '1Mi', handle = '' } = {}) {
  const spec = { store: 'silver', name: 'a', bytes: mib, enforce, access: undefined, labels: {} };
  const { id } = await fixture.core.volumes.create(spec, aCall());
  fixture.api.put(paths.volumes, {
    metadata: { name: 'pvc-1' },
    spec: {
      capacity: { storage: has },
      claimRef: { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' },
      csi: { driver: 'file.stowage.dev', volumeHandle: handle || id, volumeAttributes: { store: 'silver' } },
    },
    status: { phase: 'Bound' },
  });
  const claim = aClaim('cart', { volumeName: 'pvc-1', resources: { requests: { storage: wants } } });
  fixture.api.put(paths.claims, { ...claim, status: { phase: 'Bound', capacity: { storage: '1Mi' }, ...status } });
}

const otherCondition = { type: 'Other', status: 'True' };
const resizingCondition = { type: 'Resizing', status: 'True' };

test('the volume of a claim that requests more is expanded', async () => {
  await putBoundClaim({ conditions: [otherCondition, resizingCondition] });
  fixture.start(createResizing);
  await eventually(() => fixture.notes('VolumeResizeSuccessful')).toEqual(['Expanded the volume to 2Mi']);
  expect(await fixture.volumes()).toMatchObject([{ bytes: 2n * mib }]);
  expect(await fixture.list(persistentVolumes)).toMatchObject([{ spec: { capacity: { storage: '2Mi' } } }]);
  const [claim] = await fixture.list(claims);
  expect(claim?.status).toEqual({
    phase: 'Bound',
    capacity: { storage: '2Mi' },
    allocatedResources: { storage: '2Mi' },
    conditions: [otherCondition],
  });
  expect(fixture.changes()).toHaveLength(3);
});

test('a claim whose nodes have to expand the volume too waits for them with a condition', async () => {
  await putBoundClaim({}, { enforce: true });
  const controller = fixture.start(createResizing);
  await eventually(() => fixture.notes('VolumeResizeSuccessful')).toHaveLength(1);
  const [claim] = await fixture.list(claims);
  expect(claim?.status).toMatchObject({
    capacity: { storage: '1Mi' },
    allocatedResources: { storage: '2Mi' },
    allocatedResourceStatuses: { storage: 'NodeResizePending' },
    conditions: [{ type: 'FileSystemResizePending', status: 'True' }],
  });
  const before = fixture.changes().length;
  controller.add('shop/cart');
  await eventually(() => controller.counts().waiting + controller.counts().running).toBe(0);
  expect(fixture.changes()).toHaveLength(before);
});

test('a volume to which its PersistentVolume refers by a bare name is not expanded', async () => {
  await putBoundClaim({}, { handle: 'a' });
  fixture.start(createResizing);
  await eventually(async () => (await fixture.notes('VolumeResizeFailed')).join()).toContain("there is no volume 'a'");
  expect(await fixture.volumes()).toMatchObject([{ bytes: mib }]);
});

test('an expansion that was interrupted before the update of the claim is finished', async () => {
  await putBoundClaim({}, { has: '2Mi' });
  fixture.start(createResizing);
  await eventually(() => fixture.list(claims)).toMatchObject([{ status: { capacity: { storage: '2Mi' } } }]);
});

test.each<[string, Parameters<typeof putBoundClaim>[1]]>([
  ['has what it requests', { wants: '1Mi' }],
  ['requests less', { wants: '1Ki' }],
])('a claim that %s is not changed', async (_, sizes) => {
  await putBoundClaim({}, sizes);
  const controller = fixture.start(createResizing);
  await eventually(() => fixture.caches.claims.synced && fixture.caches.volumes.synced).toBe(true);
  expect(controller.counts()).toMatchObject({ done: 0, waiting: 0, running: 0 });
  controller.add('shop/cart');
  await eventually(() => controller.counts().done).toBeGreaterThan(0);
  expect(fixture.changes()).toEqual([]);
});

test('a claim that was just bound and has no capacity yet is not changed', async () => {
  await putBoundClaim({ capacity: undefined }, { wants: '1Mi' });
  const controller = fixture.start(createResizing);
  await eventually(() => fixture.caches.claims.synced && fixture.caches.volumes.synced).toBe(true);
  expect(controller.counts()).toMatchObject({ done: 0, waiting: 0, running: 0 });
  controller.add('shop/cart');
  await eventually(() => controller.counts().done).toBeGreaterThan(0);
  expect(fixture.changes()).toEqual([]);
});

test('a claim gets an Event, and is not changed, if there is no space', async () => {
  await fixture.core.stores.add('small', `${fixture.newStoreUri('small')}?maxBytes=1M`, aCall());
  await putBoundClaim({});
  const { id } = await fixture.core.volumes.create(
    { store: 'small', name: 'b', bytes: mib, access: undefined, labels: {} },
    aCall(),
  );
  const [object] = await fixture.list(persistentVolumes);
  const csi = { driver: 'file.stowage.dev', volumeHandle: id, volumeAttributes: { store: 'small' } };
  fixture.api.put(paths.volumes, { metadata: { name: 'pvc-1' }, spec: { ...object?.spec, csi } });
  fixture.start(createResizing);
  await eventually(async () => (await fixture.notes('VolumeResizeFailed')).join()).toContain('small');
  expect(await fixture.list(persistentVolumes)).toMatchObject([{ spec: { capacity: { storage: '1Mi' } } }]);
});
