import { describe, expect, test } from 'vitest';
import type { TakeOverAction } from '#cli/take-over-service.ts';
import { type ForeignDriver, foreignDirectory } from '#testing/foreign-volumes.ts';
import { administrator, asAnyObject, paths, takeOverFixture } from '#testing/take-over-fixture.ts';
import type { PersistentVolumeClaim } from '#wire/kube/types.ts';

const it = takeOverFixture();
const { volume, claim, reconcile, provisioned, createCommand, run, runAndKill, listCandidates } = it;

describe.each<ForeignDriver>(['csi', 'subdir'])('a claim of %s', (kind) => {
  const before = async (name: string) => ({ volume: await volume(name), claim: await claim() });

  test('has the same name and another volume, with the same directory', async () => {
    const from = provisioned(kind);
    const was = await before(from);
    expect(await listCandidates()).toMatchObject([{ claim: 'shop/data', from, to: `${from}-stowage`, state: 'ready' }]);
    await run('take');
    const is = await claim();
    expect(is?.metadata).toMatchObject({ labels: { app: 'data' }, annotations: { 'example.com/owner': 'the team' } });
    expect(is?.metadata.uid).not.toBe(was.claim?.metadata.uid);
    expect(is?.metadata.annotations).not.toHaveProperty(['pv.kubernetes.io/bind-completed']);
    expect(is?.spec).toEqual({ ...was.claim?.spec, volumeName: `${from}-stowage` });
    expect(await volume(`${from}-stowage`)).toMatchObject({
      spec: {
        accessModes: ['ReadWriteMany'],
        capacity: { storage: '1Gi' },
        persistentVolumeReclaimPolicy: 'Retain',
        storageClassName: was.claim?.spec.storageClassName,
        csi: {
          driver: 'file.stowage.dev',
          volumeHandle: 'sv1-id',
          volumeAttributes: { store: 'silver', name: foreignDirectory(kind, was.claim as PersistentVolumeClaim) },
        },
      },
    });
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Retain');
    expect(await listCandidates()).toMatchObject([{ state: 'taken-over' }]);
    expect(it.destroyed).toEqual([]);
  });

  test('is restored by undo', async () => {
    const from = provisioned(kind);
    const was = await before(from);
    await run('take');
    await run('undo');
    const is = await before(from);
    expect(is.claim?.spec).toEqual(was.claim?.spec);
    expect(is.volume?.spec).toMatchObject({ ...was.volume?.spec, claimRef: { uid: is.claim?.metadata.uid } });
    expect(is.volume?.metadata.annotations).toEqual(was.volume?.metadata.annotations);
    expect(await volume(`${from}-stowage`)).toBeUndefined();
    expect(await listCandidates()).toMatchObject([{ state: 'ready' }]);
  });

  test('is an ordinary claim of Stowage after --finish', async () => {
    const from = provisioned(kind);
    await run('take');
    await run('finish');
    expect(await volume(from)).toBeUndefined();
    const after = await volume(`${from}-stowage`);
    expect(after?.spec.persistentVolumeReclaimPolicy).toBe(kind === 'csi' ? 'Retain' : 'Delete');
    expect(after?.metadata.annotations).toEqual({ 'pv.kubernetes.io/provisioned-by': 'file.stowage.dev' });
    expect(after?.metadata.finalizers).toEqual(['stowage.dev/volume']);
    expect(await listCandidates()).toEqual([]);
    expect(it.destroyed).toEqual([]);
  });
});

describe('killed at any step', () => {
  /** At least the number of changes that each action makes. */
  const steps = Array.from({ length: 7 }, (_, at) => at);
  const killed = async (deed: TakeOverAction, after: number): Promise<void> => {
    await runAndKill(deed, after);
    await reconcile();
    expect(it.destroyed).toEqual([]);
    // At any time the claim exists, or its content is recorded.
    expect((await claim()) ?? (await listCandidates())[0]?.claim).toBeDefined();
  };
  const hasBefore = async (from: string): Promise<void> => {
    expect((await claim())?.spec.volumeName).toBe(from);
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  };

  test.each(steps)('take-over, after %i changes: succeeds when repeated', async (after) => {
    const from = provisioned('subdir');
    await killed('take', after);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    expect(await listCandidates()).toMatchObject([{ state: 'taken-over' }]);
    expect(it.destroyed).toEqual([]);
  });

  test.each(steps.slice(2))('take-over, after %i changes: undo restores the claim', async (after) => {
    const from = provisioned('csi');
    await killed('take', after);
    await run('undo');
    await hasBefore(from);
    expect(it.destroyed).toEqual([]);
  });

  test.each(steps)('undo, after %i changes: succeeds when repeated', async (after) => {
    const from = provisioned('csi');
    await run('take');
    await killed('undo', after);
    if ((await volume(`${from}-stowage`)) !== undefined) await run('undo');
    await hasBefore(from);
    expect(it.destroyed).toEqual([]);
  });

  test.each(steps)('undo, after %i changes: another take-over succeeds', async (after) => {
    const from = provisioned('subdir');
    await run('take');
    await killed('undo', after);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    expect((await volume(from))?.metadata.annotations).toMatchObject({ 'stowage.dev/reclaim-policy': 'Delete' });
    expect(it.destroyed).toEqual([]);
  });

  test.each(steps)('finish, after %i changes: succeeds when repeated', async (after) => {
    const from = provisioned('subdir');
    await run('take');
    await killed('finish', after);
    if ((await listCandidates()).length > 0) await run('finish');
    expect(await volume(from)).toBeUndefined();
    expect((await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect((await volume(`${from}-stowage`))?.metadata.annotations).toEqual({
      'pv.kubernetes.io/provisioned-by': 'file.stowage.dev',
    });
    expect(it.destroyed).toEqual([]);
  });
});

test('retries with the current state after a conflict', async () => {
  const from = provisioned('subdir');
  const { intercept } = it.api;
  const seen = new Set<string>();
  it.api.intercept = (request, response, body) => {
    // Conflicts with the first change of each PersistentVolume: its status was written just before.
    const change = body.replace(/"resourceVersion":"\d+"/, '');
    if (request.method === 'PATCH' && request.headers['user-agent'] === administrator && !seen.has(change)) {
      seen.add(change);
      it.api.refuse(response, 409, 'Conflict');
      return true;
    }
    return intercept?.(request, response, body) === true;
  };
  await run('take');
  expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  await run('undo');
  await run('take');
  await run('finish');
  expect(await listCandidates()).toEqual([]);
});

test('a claim that was enlarged gets a volume that is large enough, in both directions', async () => {
  const from = provisioned('subdir');
  await run('take');
  const { spec, ...rest } = (await claim()) as PersistentVolumeClaim;
  it.api.put(paths.claims, asAnyObject({ ...rest, spec: { ...spec, resources: { requests: { storage: '3Gi' } } } }));
  await run('undo');
  expect((await volume(from))?.spec.capacity).toEqual({ storage: '3Gi' });
  expect((await claim())?.spec.resources).toEqual({ requests: { storage: '3Gi' } });
});

test('refuses a store that does not exist, or that has no export', async () => {
  using other = createCommand([], 'gold');
  await expect(other.findCandidates('take')).rejects.toMatchObject({ code: 'not-found', reason: 'store-unknown' });
  it.api.put(paths.stores, { metadata: { name: 'silver' }, spec: { uri: 'local:///srv' } });
  await expect(listCandidates()).rejects.toMatchObject({ code: 'unsupported', reason: 'take-over-not-possible' });
});

test("a user without permission gets the API server's message", async () => {
  it.api.intercept = (_, response) => {
    it.api.refuse(response, 403, 'Forbidden', {
      message: 'stores.stowage.dev "silver" is forbidden: User "me" cannot',
    });
    return true;
  };
  await expect(listCandidates()).rejects.toMatchObject({
    code: 'denied',
    reason: 'kubernetes-denied',
    message: expect.stringContaining('User "me" cannot'),
  });
});
