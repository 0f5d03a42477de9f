import { describe, expect, test } from 'vitest';
import { storeIdentityAnnotation } from '#controllers/names.ts';
import { foreignClass, foreignClasses } from '#testing/foreign-volumes.ts';
import { asAnyObject, foreignExport, paths, takeOverFixture } from '#testing/take-over-fixture.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';

const it = takeOverFixture();
const { putStore, volume, provisioned, run } = it;

describe('the reclaim policy of a finished volume', () => {
  const policyOf = async (from: string) => (await volume(`${from}-stowage`))?.spec.persistentVolumeReclaimPolicy;
  const changed =
    (attributes: object, more: object = {}) =>
    (one: PersistentVolume): object => {
      const volumeAttributes = { ...one.spec.csi?.volumeAttributes, ...attributes };
      return { ...one, spec: { ...one.spec, csi: { ...one.spec.csi, volumeAttributes, ...more } } };
    };
  const classWith = (parameters: object): void =>
    void it.api.put(paths.classes, asAnyObject({ ...foreignClass('subdir', foreignExport), parameters }));

  test.each([
    ['the driver keeps the data', { onDelete: 'retain' }, {}],
    ['the driver archives the data, in any spelling', { ondelete: 'Archive' }, {}],
    ['the volume id says that the data are kept', {}, { volumeHandle: '10.10.2.4#export/silver#one##retain' }],
    ["only the driver's arguments tell", {}, {}],
    // The id does not contain it, and the arguments count.
    ['the class said delete, but the arguments count', { onDelete: 'delete' }, {}],
  ])('is Retain for csi-driver-nfs: %s', async (_, attributes, more) => {
    const from = provisioned('csi', 'data', changed(attributes, more));
    await run('take');
    const said = await run('finish');
    expect(await policyOf(from)).toBe('Retain');
    expect(said).toContain(`the reclaim policy stays Retain`);
    expect(said).toContain(`kubectl patch pv ${from}-stowage --type=merge`);
  });

  test.each([
    ['the data are archived by default', {}],
    ['the data are archived', { archiveOnDelete: 'true' }],
    ['the data are kept', { onDelete: 'retain', archiveOnDelete: 'false' }],
  ])('is Retain for nfs-subdir-external-provisioner: %s', async (_, parameters) => {
    classWith(parameters);
    const from = provisioned('subdir');
    await run('take');
    expect(await run('finish')).toContain('the reclaim policy stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test.each([{ onDelete: 'delete' }, { archiveOnDelete: 'False' }])(
    'is Delete for nfs-subdir-external-provisioner if the class deletes the data: %j',
    async (parameters) => {
      classWith(parameters);
      const from = provisioned('subdir');
      await run('take');
      expect(await run('finish')).toBe('');
      expect(await policyOf(from)).toBe('Delete');
    },
  );

  test.each(['gone', "another's"])('is Retain if the class is %s', async (how) => {
    const from = provisioned('subdir');
    await run('take');
    if (how === 'gone') it.api.remove(paths.classes, foreignClasses.subdir);
    else
      it.api.put(
        paths.classes,
        asAnyObject({ ...foreignClass('subdir', foreignExport), provisioner: 'file.stowage.dev' }),
      );
    expect(await run('finish')).toContain('the reclaim policy stays Retain');
    expect(await policyOf(from)).toBe('Retain');
  });

  test('is Retain if the volume had no provisioner, or is gone', async () => {
    const byHand = (one: PersistentVolume) => ({ ...one, metadata: { ...one.metadata, annotations: {} } });
    const from = provisioned('csi', 'data', byHand);
    const other = provisioned('csi', 'other');
    await run('take');
    await run('take', { name: 'other', id: 'sv1-other' });
    it.api.remove(paths.volumes, other);
    expect(await run('finish')).toContain('the reclaim policy stays Retain');
    expect(await run('finish', { name: 'other' })).toContain('the reclaim policy stays Retain');
    expect([await policyOf(from), await policyOf(other)]).toEqual(['Retain', 'Retain']);
  });

  test.each([
    ['an option', { onDelete: 'archive' }, ''],
    ['its uri', undefined, '?onDelete=retain'],
  ])('is the previous one if the store keeps deleted data, by %s', async (_, options, query) => {
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

describe('the store identity of a finished PersistentVolume', () => {
  const identityOf = async (from: string) =>
    (await volume(`${from}-stowage`))?.metadata.annotations?.[storeIdentityAnnotation];

  test('is the one recorded when it was taken over', async () => {
    const from = provisioned('csi');
    await run('take', { identity: 'before' });
    expect(await identityOf(from)).toBe('before');
    await run('finish', { identity: 'after' });
    expect(await identityOf(from)).toBe('before');
  });

  test('is the one at the end, if an older program did not record it', async () => {
    const from = provisioned('csi');
    await run('take');
    await run('finish', { identity: 'after' });
    expect(await identityOf(from)).toBe('after');
  });
});
