import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { nfsStoreOnDisk } from '#testing/nfs-store-on-disk.ts';
import { volumeSpec } from '#testing/volume-spec.ts';

const spec = (name: string, labels = {}): VolumeSpec => volumeSpec(name, { labels, requestId: `adopt ${name}` });

describe('directories that other provisioners made', () => {
  test.each([
    ['csi-driver-nfs', 'pvc-1e0f8a5e-3c2b-4c57-9a51-2f1d5a0c7c11'],
    ['nfs-subdir-external-provisioner', 'web-data-db-0-pvc-0b9c5b2e-55f7-4a35-8b4b-19d0f7a2f9aa'],
  ])('of %s become volumes in place, with their contents', async (_provisioner, name) => {
    const { store, folder } = await nfsStoreOnDisk();
    await mkdir(join(folder, name), { mode: 0o777 });
    await writeFile(join(folder, name, 'row'), '1');
    expect(await store.adoption.adoptable(scope)).toEqual([{ name }]);
    const adopted = await store.adoption.adopt(volumeName(name), spec(name), scope);
    expect(await store.get(adopted.name, scope)).toEqual({ volume: adopted, condition: 'ok' });
    expect(await readFile(join(folder, name, 'row'), 'utf8')).toBe('1');
  });

  test('in folders by namespace are found by the path template, with their labels', async () => {
    const { store, folder } = await nfsStoreOnDisk({ pathTemplate: '{label:namespace}/{name}' });
    await mkdir(join(folder, 'web', 'db'), { recursive: true });
    await mkdir(join(folder, 'web', 'cache'));
    await mkdir(join(folder, 'web', 'bad name'));
    await writeFile(join(folder, 'web', 'db', 'row'), '1');
    const names = async () => (await store.adoption.adoptable(scope)).map(({ name }) => name).sort();
    expect(await names()).toEqual(['cache', 'db']);
    const adopted = await store.adoption.adopt(volumeName('db'), spec('db', { tier: 'gold' }), scope);
    expect(adopted.labels).toEqual({ namespace: 'web', tier: 'gold' });
    expect(await store.source(adopted, scope)).toMatchObject({ path: '/export/web/db' });
    expect(await readFile(join(folder, 'web', 'db', 'row'), 'utf8')).toBe('1');
    // Neither the folder nor a directory inside the volume is a volume.
    await mkdir(join(folder, 'web', 'db', 'inner'));
    expect(await names()).toEqual(['cache']);
    const fresh = await store.create({ ...spec('new', { namespace: 'web' }) }, scope);
    expect(await store.source(fresh, scope)).toMatchObject({ path: '/export/web/new' });
    await store.delete(adopted, scope);
    await store.housekeeping.reclaim(scope);
    expect((await readdir(join(folder, 'web'))).sort()).toEqual(['.stowage-folder', 'bad name', 'cache', 'new']);
  });

  test('never offers the contents of a volume for adoption, whatever the template', async () => {
    const { store, folder, another } = await nfsStoreOnDisk({ pathTemplate: '{label:namespace}/{name}' });
    const other = await another('instance-2', { pathTemplate: '{name}' });
    await other.create(spec('plain'), scope);
    await mkdir(join(folder, 'plain', 'inner'));
    expect(await store.adoption.adoptable(scope)).toEqual([]);
  });
});
