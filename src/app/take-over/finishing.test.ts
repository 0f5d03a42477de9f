import { describe, expect, test } from 'vitest';
import { storeIdentity } from '#controllers/names.ts';
import { foreignClass, foreignClasses } from '#testing/foreign-volumes.ts';
import { asAnyObject, at, paths, takeOverFixture } from '#testing/take-over-fixture.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';

const it = takeOverFixture();
const { putStore, volume, provisioned, run } = it;

describe('what is deleted with a finished claim', () => {
  const policyOf = async (from: string) => (await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy;
  const changed =
    (attributes: object, more: object = {}) =>
    (one: PersistentVolume): object => {
      const volumeAttributes = { ...one.spec.csi?.volumeAttributes, ...attributes };
      return { ...one, spec: { ...one.spec, csi: { ...one.spec.csi, volumeAttributes, ...more } } };
    };
  const classWith = (parameters: object): void =>
    void it.api.put(paths.classes, asAnyObject({ ...foreignClass('subdir', at), parameters }));

  test.each([
    ['kept by the driver', { onDelete: 'retain' }, {}],
    ['archived, however it is written', { ondelete: 'Archive' }, {}],
    ['kept as its id says', {}, { volumeHandle: '10.10.2.4#export/silver#one##retain' }],
    ['what only its arguments tell', {}, {}],
    // Nothing of it is in the id, and the arguments count.
    ['to be deleted, as its class said', { onDelete: 'delete' }, {}],
  ])('csi-driver-nfs: %s stays', async (_, attributes, more) => {
    const from = provisioned('csi', 'data', changed(attributes, more));
    await run('take');
    const said = await run('finish');
    expect(await policyOf(from)).toBe('Retain');
    expect(said).toContain(`it stays Retain`);
    expect(said).toContain(`kubectl patch pv ${from}-stowage --type=merge`);
  });

  test.each([
    ['archived, as it does by itself', {}],
    ['archived', { archiveOnDelete: 'true' }],
    ['kept', { onDelete: 'retain', archiveOnDelete: 'false' }],
  ])('nfs-subdir-external-provisioner: %s stays', async (_, parameters) => {
    classWith(parameters);
    const from = provisioned('subdir');
    await run('take');
    expect(await run('finish')).toContain('it stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test.each([{ onDelete: 'delete' }, { archiveOnDelete: 'False' }])(
    'nfs-subdir-external-provisioner: what was to be deleted is, by %j',
    async (parameters) => {
      classWith(parameters);
      const from = provisioned('subdir');
      await run('take');
      expect(await run('finish')).toBe('');
      expect(await policyOf(from)).toBe('Delete');
    },
  );

  test.each(['gone', "another's"])('nothing, where the class is %s', async (how) => {
    const from = provisioned('subdir');
    await run('take');
    if (how === 'gone') it.api.remove(paths.classes, foreignClasses.subdir);
    else it.api.put(paths.classes, asAnyObject({ ...foreignClass('subdir', at), provisioner: 'file.stowage.dev' }));
    expect(await run('finish')).toContain('it stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test('nothing, where nobody made the volume, or it is gone', async () => {
    const byHand = (one: PersistentVolume) => ({ ...one, metadata: { ...one.metadata, annotations: {} } });
    const from = provisioned('csi', 'data', byHand);
    const other = provisioned('csi', 'other');
    await run('take');
    await run('take', { name: 'other', id: 'sv1-other' });
    it.api.remove(paths.volumes, other);
    expect(await run('finish')).toContain('it stays Retain');
    expect(await run('finish', { name: 'other' })).toContain('it stays Retain');
    expect([await policyOf(from), await policyOf(other)]).toEqual(['Retain', 'Retain']);
  });

  test.each([
    ['an option', { onDelete: 'archive' }, ''],
    ['its uri', undefined, '?onDelete=retain'],
  ])('what the store itself keeps, by %s', async (_, options, query) => {
    classWith({});
    const from = provisioned('subdir');
    const kept = provisioned('subdir', 'kept', (one) => ({
      ...one,
      spec: { ...one.spec, persistentVolumeReclaimPolicy: 'Retain' },
    }));
    putStore(options, query);
    await run('take');
    await run('take', { name: 'kept', id: 'sv1-kept' });
    expect([await run('finish'), await run('finish', { name: 'kept' })]).toEqual(['', '']);
    expect([await policyOf(from), await policyOf(kept)]).toEqual(['Delete', 'Retain']);
  });
});

describe('what a finished PersistentVolume says of its store', () => {
  const identityOf = async (from: string) => (await volume(`${from}-stowage`))?.metadata.annotations?.[storeIdentity];

  test('is what the store said when it was taken over', async () => {
    const from = provisioned('csi');
    await run('take', { identity: 'before' });
    expect(await identityOf(from)).toBe('before');
    await run('finish', { identity: 'after' });
    expect(await identityOf(from)).toBe('before');
  });

  test('is what it says at the end, where it was begun by a program that did not ask', async () => {
    const from = provisioned('csi');
    await run('take');
    await run('finish', { identity: 'after' });
    expect(await identityOf(from)).toBe('after');
  });
});
