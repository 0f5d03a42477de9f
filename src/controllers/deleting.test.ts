import { describe, expect, test } from 'vitest';
import { type Log, silentLog } from '#base/log.ts';
import type { ErrorCode } from '#core/error-codes.ts';
import { relayed } from '#core/errors.ts';
import type { NodeName } from '#core/model.ts';
import { aClaim, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import { aCall } from '#testing/core-calls.ts';
import type { AnyObject } from '#testing/fakes/kube-objects.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import { createDeleting } from './deleting.ts';
import { storeIdentityAnnotation } from './names.ts';
import type { Provisioner } from './provisioner.ts';

const fixture = controllerFixture();

async function createReleasedVolume(
  more: { readonly spec?: object; readonly metadata?: object; readonly phase?: string } = {},
) {
  const spec = { store: 'silver', name: 'a', bytes: 1n << 20n, access: undefined, labels: {} };
  const volume = await fixture.core.volumes.create(spec, aCall());
  const object: AnyObject = {
    metadata: {
      name: 'pvc-1',
      finalizers: ['stowage.dev/volume'],
      annotations: { 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' },
      ...more.metadata,
    },
    spec: {
      persistentVolumeReclaimPolicy: 'Delete',
      storageClassName: 'fast',
      capacity: { storage: '1Mi' },
      claimRef: { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' },
      csi: { driver: 'file.stowage.dev', volumeHandle: volume.id, volumeAttributes: { store: 'silver' } },
      ...more.spec,
    },
    status: { phase: more.phase ?? 'Released' },
  };
  fixture.api.put(paths.volumes, object);
  return volume;
}

const remainingCounts = async () => [(await fixture.volumes()).length, (await fixture.list(persistentVolumes)).length];
const deletionTime = '2026-01-01T00:00:00Z';

describe('a PersistentVolume', () => {
  test('is deleted with its volume when it is released', async () => {
    await createReleasedVolume();
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('is deleted with its volume when a user deletes it', async () => {
    await createReleasedVolume({ metadata: { deletionTimestamp: deletionTime }, phase: 'Available' });
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test.each([
    ['id', (id: string) => id],
    ['store and name', () => 'silver..a'],
  ])('stays with its volume while another PersistentVolume refers to the volume by its %s', async (_, handleFor) => {
    const attributes = { volumeAttributes: { store: 'silver', name: 'a' } };
    const { id } = await createReleasedVolume();
    const [persistentVolume] = await fixture.list(persistentVolumes);
    fixture.api.put(paths.volumes, {
      ...persistentVolume,
      spec: { ...persistentVolume?.spec, csi: { ...persistentVolume?.spec.csi, ...attributes } },
    } as AnyObject);
    const csi = { driver: 'file.stowage.dev', volumeHandle: handleFor(id) };
    const other = { spec: { persistentVolumeReclaimPolicy: 'Retain', csi }, status: { phase: 'Bound' } };
    fixture.api.put(paths.volumes, { metadata: { name: 'by-hand' }, ...other });
    fixture.start(createDeleting);
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      "PersistentVolume 'by-hand' refers to the same volume. Delete that PersistentVolume and its claim first",
    );
    expect(await remainingCounts()).toEqual([1, 2]);
    fixture.api.remove(paths.volumes, 'by-hand');
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('is deleted when its volume no longer exists', async () => {
    const { id } = await createReleasedVolume();
    await fixture.core.deletions.delete(id, undefined, aCall());
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('is deleted without a volume, with a warning in the log, when its handle is a bare name', async () => {
    await createReleasedVolume();
    const [object] = await fixture.list(persistentVolumes);
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'a' };
    fixture.api.put(paths.volumes, { ...(object as unknown as AnyObject), spec: { ...object?.spec, csi } });
    const warnings: unknown[] = [];
    const log: Log = { ...silentLog(), warn: (...line) => void warnings.push(line), with: () => log };
    fixture.start((parts) => {
      const controller = createDeleting(parts);
      return { ...controller, run: (scope, stop) => controller.run({ ...scope, log }, stop) };
    });
    await eventually(remainingCounts).toEqual([1, 0]);
    expect(warnings).toEqual([['no volume was deleted: the volumeHandle is not one of Stowage', { handle: 'a' }]]);
  });

  test('stays when its volume is not found and the Store of that name is at another location now', async () => {
    const provisionedBy = { 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' };
    const { id } = await createReleasedVolume({
      metadata: { annotations: { ...provisionedBy, [storeIdentityAnnotation]: 'of-before' } },
    });
    await fixture.core.deletions.delete(id, undefined, aCall());
    fixture.start(createDeleting);
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      "store 'silver' is at another location than when the volume was created, and the volume may still be at the old one. Create a Store for the old location",
    );
    expect(await remainingCounts()).toEqual([0, 1]);
  });

  test('is deleted with its volume when the identity of its store has changed', async () => {
    const provisionedBy = { 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' };
    await createReleasedVolume({
      metadata: { annotations: { ...provisionedBy, [storeIdentityAnnotation]: 'of-before' } },
    });
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('is deleted without its volume by the policy Retain, and the volume is labelled', async () => {
    await createReleasedVolume({
      metadata: { deletionTimestamp: deletionTime },
      spec: { persistentVolumeReclaimPolicy: 'Retain' },
    });
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([1, 0]);
    expect(await fixture.volumes()).toMatchObject([{ labels: { 'stowage.dev/retained': 'true' } }]);
  });

  /** Starts the controller with a provisioner whose `retain` fails, and returns a function that makes it succeed. */
  async function startWithFailingRetain(code: ErrorCode, reason: string): Promise<() => void> {
    await createReleasedVolume({
      metadata: { deletionTimestamp: deletionTime },
      spec: { persistentVolumeReclaimPolicy: 'Retain' },
    });
    const [file] = fixture.parts.provisioners.values();
    if (file === undefined) throw new Error('there is no provisioner');
    let isFailing = true;
    const retain: Provisioner['retain'] = async (handle, scope) => {
      if (isFailing) throw relayed('the volume cannot be labelled', { code, reason, action: 'Wait.' });
      await file.retain(handle, scope);
    };
    fixture.start(createDeleting, { provisioners: new Map([[file.driver, { ...file, retain }]]) });
    return () => {
      isFailing = false;
    };
  }

  test('with the policy Retain stays until its volume is labelled', async () => {
    const allow = await startWithFailingRetain('unavailable', 'store-silent');
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      'the volume cannot be labelled. Wait.',
    );
    expect(await remainingCounts()).toEqual([1, 1]);
    allow();
    await eventually(remainingCounts).toEqual([1, 0]);
    expect(await fixture.volumes()).toMatchObject([{ labels: { 'stowage.dev/retained': 'true' } }]);
  });

  test('with the policy Retain stays while the agent does not know its store, but the Store object exists', async () => {
    fixture.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'local:///silver' } });
    await startWithFailingRetain('not-found', 'store-unknown');
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      'the volume cannot be labelled. Wait.',
    );
    expect(await remainingCounts()).toEqual([1, 1]);
  });

  test.each<[ErrorCode, string]>([
    ['not-found', 'volume-unknown'],
    ['conflict', 'volume-node-gone'],
    ['denied', 'store-read-only'],
    // Its Store was deleted.
    ['not-found', 'store-unknown'],
  ])('with the policy Retain is deleted when its volume can never be labelled (%s %s)', async (code, reason) => {
    await startWithFailingRetain(code, reason);
    await eventually(remainingCounts).toEqual([1, 0]);
  });

  test.each<[string, Parameters<typeof createReleasedVolume>[0]]>([
    ['that is bound', { phase: 'Bound' }],
    ['that is released, with the policy Retain,', { spec: { persistentVolumeReclaimPolicy: 'Retain' } }],
    ['that was written by hand', { metadata: { annotations: {} } }],
    [
      'that Kubernetes still protects',
      {
        phase: 'Available',
        metadata: {
          deletionTimestamp: deletionTime,
          finalizers: ['kubernetes.io/pv-protection', 'stowage.dev/volume'],
        },
      },
    ],
    ['of another driver', { spec: { csi: { driver: 'x', volumeHandle: 'y' } } }],
  ])('%s is not changed', async (_, more) => {
    await createReleasedVolume(more);
    const controller = fixture.start(createDeleting);
    await eventually(() => fixture.caches.volumes.synced && fixture.caches.claims.synced).toBe(true);
    // Most PersistentVolumes are like this one: the controller does not even reconcile them.
    expect(controller.counts()).toMatchObject({ done: 0, waiting: 0, running: 0 });
    controller.add('pvc-1');
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect([await remainingCounts(), fixture.changes()]).toEqual([[1, 1], []]);
  });

  test('stays while a claim refers to it, whatever its own phase is', async () => {
    fixture.api.put(paths.claims, aClaim('cart', { volumeName: 'pvc-1' }));
    await createReleasedVolume();
    const controller = fixture.start(createDeleting);
    await eventually(() => fixture.caches.claims.synced && fixture.caches.volumes.synced).toBe(true);
    controller.add('pvc-1');
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect([await remainingCounts(), fixture.changes()]).toEqual([[1, 1], []]);
    fixture.api.remove(paths.claims, 'cart');
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('keeps its volume if the policy is already Retain on the API server, but not in the cache', async () => {
    await createReleasedVolume();
    const [object] = await fixture.list(persistentVolumes);
    const retained = { ...object, spec: { ...object?.spec, persistentVolumeReclaimPolicy: 'Retain' } };
    fixture.api.intercept = ({ method, url }, response) => {
      if (method !== 'GET' || url !== `${paths.volumes}/pvc-1`) return false;
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(retained));
      return true;
    };
    const controller = fixture.start(createDeleting);
    await eventually(() => controller.counts().done).toBeGreaterThan(0);
    expect([await remainingCounts(), fixture.changes()]).toEqual([[1, 1], []]);
  });

  test('gets an Event while its volume is in use on a node, and is deleted afterwards', async () => {
    const { id, name } = await createReleasedVolume();
    const use = { host: 'host-1', node: 'node-1' as NodeName, users: [{ kind: 'pod', name: 'shop/p' }] } as const;
    const uses = fixture.core.stores.view('silver').store?.uses;
    await uses?.put({ id, name }, use, aCall());
    fixture.start(createDeleting);
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      'the volume is still in use on a node. Stowage deletes it as soon as no node uses it.',
    );
    expect(await remainingCounts()).toEqual([1, 1]);
    await uses?.remove(id, 'host-1', aCall());
    await eventually(remainingCounts).toEqual([0, 0]);
  });

  test('stays when its store is no longer configured, and gets an Event', async () => {
    const { id } = await createReleasedVolume({ spec: {} });
    const [object] = await fixture.list(persistentVolumes);
    const csi = { driver: 'file.stowage.dev', volumeHandle: id, volumeAttributes: { store: 'gold' } };
    fixture.api.put(paths.volumes, { ...(object as unknown as AnyObject), spec: { ...object?.spec, csi } });
    fixture.start(createDeleting);
    await eventually(async () => (await fixture.notes('VolumeFailedDelete')).join()).toContain(
      "store 'gold' is not configured any more, and the volume may still be on it. Recreate its Store object",
    );
    expect(await remainingCounts()).toEqual([1, 1]);
  });

  test('is deleted when a controller died after it removed the finalizer', async () => {
    await createReleasedVolume({ metadata: { finalizers: [] } });
    fixture.start(createDeleting);
    await eventually(remainingCounts).toEqual([0, 0]);
  });
});
