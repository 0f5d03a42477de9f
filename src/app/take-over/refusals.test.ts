import { describe, expect, test } from 'vitest';
import { foreignClaim } from '#testing/foreign-volumes.ts';
import { asAnyObject, foreignExport, paths, pod, takeOverFixture } from '#testing/take-over-fixture.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';

const it = takeOverFixture();
const {
  putStore,
  list,
  volume,
  claim,
  provisioned,
  createCommand,
  run,
  runAndKill,
  refused,
  setFinalizers,
  listCandidates,
} = it;

describe('take-over', () => {
  const held = ['kubernetes.io/pvc-protection', 'snapshot.storage.kubernetes.io/pvc-as-source-protection'];
  test('refuses a claim that a pod uses, until the pod has ended', async () => {
    const from = provisioned('csi');
    it.api.put(paths.pods, pod('Running'));
    expect(await listCandidates()).toMatchObject([
      { state: 'used', detail: expect.stringContaining('used by pod web-0') },
    ]);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    expect((await claim())?.spec.volumeName).toBe(from);
    expect(await list(persistentVolumes)).toEqual(was);
    it.api.put(paths.pods, pod('Succeeded'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('does not undo a claim that a pod uses, and changes nothing', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.put(paths.pods, pod('Running'));
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('used by pod web-0');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('refuses a directory that is nested, is the whole export, or has no claim', async () => {
    const nfs = (path: string) => (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { ...foreignExport, path } },
    });
    provisioned('subdir', 'deeper', nfs(`${foreignExport.path}/red/data`));
    provisioned('subdir', 'whole', nfs(`${foreignExport.path}/`));
    provisioned('subdir', 'beside', nfs(`${foreignExport.path}-2/data`));
    provisioned('subdir', 'odd', nfs(`${foreignExport.path}/what is it`));
    provisioned('subdir', 'gone');
    it.api.remove(paths.claims, 'gone');
    expect(await listCandidates()).toMatchObject([
      {
        claim: 'shop/deeper',
        state: 'impossible',
        detail: expect.stringContaining('use a Store for the parent directory, red'),
      },
      { claim: 'shop/whole', state: 'impossible', detail: expect.stringContaining('the whole export') },
      { claim: 'shop/odd', state: 'impossible', detail: expect.stringContaining('not valid for a volume') },
      { claim: 'shop/gone', state: 'unclaimed' },
    ]);
  });

  test('refuses a directory of two PersistentVolumes', async () => {
    const nfs = (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { ...foreignExport, path: `${foreignExport.path}/same` } },
    });
    const [a, b] = [provisioned('subdir', 'a', nfs), provisioned('subdir', 'b', nfs)];
    expect(await listCandidates()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining(`${b} has the same directory`) },
      { state: 'impossible', detail: expect.stringContaining(`${a} has the same directory`) },
    ]);
  });

  test('refuses a claim with a foreign finalizer', async () => {
    provisioned('csi');
    await setFinalizers(...held);
    expect(await listCandidates()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining('has other finalizers: snapshot.') },
    ]);
  });

  test('refuses a claim that got a foreign finalizer after the listing', async () => {
    const from = provisioned('csi');
    await setFinalizers(...held);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('has other finalizers: snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('neither continues nor undoes a take-over if the claim got a foreign finalizer in between', async () => {
    const from = provisioned('subdir');
    // Two changes: the reclaim policy, and the new PersistentVolume.
    await runAndKill('take', 2);
    await setFinalizers(...held);
    expect((await refused('take'))?.message).toContain('has other finalizers: snapshot.');
    expect(await claim()).toMatchObject({ spec: { volumeName: from } });
    await setFinalizers();
    await run('take');
    await setFinalizers(...held);
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('has other finalizers: snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('refuses a directory for which the store has no volume, or that belongs to another PersistentVolume', async () => {
    const from = provisioned('subdir');
    const was = await list(persistentVolumes);
    expect((await refused('take', { id: '' }))?.message).toContain('the store has no volume for its directory');
    expect(await list(persistentVolumes)).toEqual(was);
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'sv1-id' };
    it.api.put(paths.volumes, asAnyObject({ metadata: { name: 'by-hand' }, spec: { csi } }));
    expect((await refused('take'))?.message).toContain('by-hand already uses that directory');
    expect(await volume(from)).toEqual(was[0]);
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test.each([
    ['an option', { pathTemplate: '{label:team}/{name}' }, ''],
    ['its uri', undefined, '?pathTemplate={label:team}/{name}'],
  ])('refuses a store with a pathTemplate, by %s', async (_, options, query) => {
    const from = provisioned('csi');
    await run('take');
    putStore(options, query);
    await expect(listCandidates()).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'take-over-not-possible',
      action: expect.stringContaining('without pathTemplate'),
    });
    await run('undo');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('does not continue an interrupted take-over while the claim is used, but can undo it', async () => {
    const from = provisioned('subdir');
    await runAndKill('take', 2);
    it.api.put(paths.pods, pod('Running'));
    expect(await listCandidates()).toMatchObject([
      { state: 'begun', detail: expect.stringMatching(/interrupted: used by pod web-0/) },
    ]);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    const { uid } = (await claim())?.metadata ?? {};
    await run('undo');
    expect(await claim()).toMatchObject({ metadata: { uid }, spec: { volumeName: from } });
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test('ignores a volume on another server, unless --server says that it is the same', async () => {
    const nfs = (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { path: one.spec.nfs?.path, server: 'Filer.example.com' } },
    });
    provisioned('subdir', 'data', nfs);
    using one = createCommand();
    expect(await one.findCandidates('take')).toEqual({ candidates: [], otherServers: ['filer.example.com'] });
    expect(await listCandidates(['filer.example.com.'])).toMatchObject([{ state: 'ready' }]);
  });

  test('binds a claim that another client created meanwhile to the reserved volume', async () => {
    const from = provisioned('subdir');
    // Three changes: the reclaim policy, the new PersistentVolume, and the deletion of the claim.
    await runAndKill('take', 3);
    expect(await claim()).toBeUndefined();
    it.api.put(paths.claims, asAnyObject(foreignClaim('subdir', 'shop', 'data')));
    it.api.put(paths.pods, pod('Pending'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('does not offer a claim that its user deleted after the take-over', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.remove(paths.claims, 'data');
    expect(await listCandidates()).toMatchObject([
      { state: 'unclaimed', detail: expect.stringContaining(`kubectl delete pv ${from} ${from}-stowage`) },
    ]);
  });

  test('does not finish a volume without a claim', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.remove(paths.claims, 'data');
    expect((await refused('finish'))?.message).toContain('its claim was deleted');
    expect((await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy).toBe('Retain');
  });
});
