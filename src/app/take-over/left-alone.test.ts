import { describe, expect, test } from 'vitest';
import { foreignClaim } from '#testing/foreign-volumes.ts';
import { asIs, at, paths, pod, takingOverGround } from '#testing/taking-over.ts';
import { persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';

const it = takingOverGround();
const { putStore, list, volume, claim, provisioned, taking, run, stopped, refused, holds, found } = it;

describe('is left alone', () => {
  const held = ['kubernetes.io/pvc-protection', 'snapshot.storage.kubernetes.io/pvc-as-source-protection'];
  test('what a pod uses, however late it comes', async () => {
    const from = provisioned('csi');
    it.api.put(paths.pods, pod('Running'));
    expect(await found()).toMatchObject([{ state: 'used', detail: expect.stringContaining('used by pod web-0') }]);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    expect((await claim())?.spec.volumeName).toBe(from);
    expect(await list(persistentVolumes)).toEqual(was);
    it.api.put(paths.pods, pod('Succeeded'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what a pod uses is not given back, and nothing is begun', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.put(paths.pods, pod('Running'));
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('used by pod web-0');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what lies deeper, is the whole export, or has no claim', async () => {
    const nfs = (path: string) => (one: PersistentVolume) => ({ ...one, spec: { ...one.spec, nfs: { ...at, path } } });
    provisioned('subdir', 'deeper', nfs(`${at.path}/red/data`));
    provisioned('subdir', 'whole', nfs(`${at.path}/`));
    provisioned('subdir', 'beside', nfs(`${at.path}-2/data`));
    provisioned('subdir', 'odd', nfs(`${at.path}/what is it`));
    provisioned('subdir', 'gone');
    it.api.remove(paths.claims, 'gone');
    expect(await found()).toMatchObject([
      {
        claim: 'shop/deeper',
        state: 'impossible',
        detail: expect.stringContaining('name a Store for the one that it is in, red'),
      },
      { claim: 'shop/whole', state: 'impossible', detail: expect.stringContaining('the whole export') },
      { claim: 'shop/odd', state: 'impossible', detail: expect.stringContaining('no volume can be called') },
      { claim: 'shop/gone', state: 'unclaimed' },
    ]);
  });

  test('a directory that two of them have', async () => {
    const nfs = (one: PersistentVolume) => ({ ...one, spec: { ...one.spec, nfs: { ...at, path: `${at.path}/same` } } });
    const [a, b] = [provisioned('subdir', 'a', nfs), provisioned('subdir', 'b', nfs)];
    expect(await found()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining(`${b} has the same directory`) },
      { state: 'impossible', detail: expect.stringContaining(`${a} has the same directory`) },
    ]);
  });

  test('a claim that something else holds', async () => {
    provisioned('csi');
    await holds(...held);
    expect(await found()).toMatchObject([
      { state: 'impossible', detail: expect.stringContaining('is held by snapshot.') },
    ]);
  });

  test('a claim that something else holds only since it was looked at', async () => {
    const from = provisioned('csi');
    await holds(...held);
    const was = await list(persistentVolumes);
    expect((await refused('take'))?.message).toContain('is held by snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('a claim that something holds since it was begun, or taken over', async () => {
    const from = provisioned('subdir');
    // The policy, and the PersistentVolume.
    await stopped('take', 2);
    await holds(...held);
    expect((await refused('take'))?.message).toContain('is held by snapshot.');
    expect(await claim()).toMatchObject({ spec: { volumeName: from } });
    await holds();
    await run('take');
    await holds(...held);
    const was = await list(persistentVolumes);
    expect((await refused('undo'))?.message).toContain('is held by snapshot.');
    expect(await list(persistentVolumes)).toEqual(was);
    expect((await claim())?.metadata).not.toHaveProperty('deletionTimestamp');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('what is no volume of the store, and what another PersistentVolume has', async () => {
    const from = provisioned('subdir');
    const was = await list(persistentVolumes);
    expect((await refused('take', { id: '' }))?.message).toContain('is no volume of the store');
    expect(await list(persistentVolumes)).toEqual(was);
    const csi = { driver: 'file.stowage.dev', volumeHandle: 'sv1-id' };
    it.api.put(paths.volumes, asIs({ metadata: { name: 'by-hand' }, spec: { csi } }));
    expect((await refused('take'))?.message).toContain('by-hand has that directory already');
    expect(await volume(from)).toEqual(was[0]);
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test.each([
    ['an option', { pathTemplate: '{label:team}/{name}' }, ''],
    ['its uri', undefined, '?pathTemplate={label:team}/{name}'],
  ])('everything on a store with paths of its own, by %s', async (_, options, query) => {
    const from = provisioned('csi');
    await run('take');
    putStore(options, query);
    await expect(found()).rejects.toMatchObject({
      code: 'unsupported',
      reason: 'take-over-not-possible',
      action: expect.stringContaining('without pathTemplate'),
    });
    await run('undo');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test('what was stopped half-way and is used: it does not go on, and is given back', async () => {
    const from = provisioned('subdir');
    await stopped('take', 2);
    it.api.put(paths.pods, pod('Running'));
    expect(await found()).toMatchObject([
      { state: 'begun', detail: expect.stringMatching(/half-way: used by pod web-0/) },
    ]);
    expect((await refused('take'))?.message).toContain('used by pod web-0');
    const { uid } = (await claim())?.metadata ?? {};
    await run('undo');
    expect(await claim()).toMatchObject({ metadata: { uid }, spec: { volumeName: from } });
    expect((await volume(from))?.spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(await volume(`${from}-stowage`)).toBeUndefined();
  });

  test('what is on another server, unless it is said to be the same', async () => {
    const nfs = (one: PersistentVolume) => ({
      ...one,
      spec: { ...one.spec, nfs: { path: one.spec.nfs?.path, server: 'Filer.example.com' } },
    });
    provisioned('subdir', 'data', nfs);
    using one = taking();
    expect(await one.findCandidates('take')).toEqual({ candidates: [], otherServers: ['filer.example.com'] });
    expect(await found(['filer.example.com.'])).toMatchObject([{ state: 'ready' }]);
  });

  test('a claim that somebody made anew meanwhile has the volume that waits for it', async () => {
    const from = provisioned('subdir');
    // The policy, the PersistentVolume, and that the claim goes.
    await stopped('take', 3);
    expect(await claim()).toBeUndefined();
    it.api.put(paths.claims, asIs(foreignClaim('subdir', 'shop', 'data')));
    it.api.put(paths.pods, pod('Pending'));
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test('a claim that its user deletes after it was taken over is not made again', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.remove(paths.claims, 'data');
    expect(await found()).toMatchObject([
      { state: 'unclaimed', detail: expect.stringContaining(`kubectl delete pv ${from} ${from}-stowage`) },
    ]);
  });

  test('what has no claim any more is not finished', async () => {
    const from = provisioned('subdir');
    await run('take');
    it.api.remove(paths.claims, 'data');
    expect((await refused('finish'))?.message).toContain('its claim is gone');
    expect((await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy).toBe('Retain');
  });
});
