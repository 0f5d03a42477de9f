import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Labels, Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { refusal, refusalOf } from '#testing/expected-errors.ts';
import type { NfsStoreUnderTest } from '#testing/nfs-store.ts';
import { nfsStoreOnDisk } from '#testing/nfs-store-on-disk.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { parsePathTemplate } from './path-template.ts';

const id = newVolumeId();
const fill = (template: string, name: string, labels: Labels = {}): string =>
  parsePathTemplate(template).pathFor({ id, name: volumeName(name), labels });

describe('a path template', () => {
  test.each([
    ['{name}', 'photos'],
    ['{id}', id],
    ['pvc-{name}', 'pvc-photos'],
    ['{label:team}/{name}', 'red/photos'],
    ['{label:team}/{label:team}/{name}', 'red/red/photos'],
    ['volumes/{label:team}-{label:tier}/{name}-{id}', `volumes/red-gold/photos-${id}`],
    ['{label:tier}-{id}', `gold-${id}`],
    ['{label:app.kubernetes.io/name}/{name}', 'shop/photos'],
    ['a/b/c/d/e/f/g/{name}', 'a/b/c/d/e/f/g/photos'],
  ])('%s', (template, path) => {
    const labels = { team: 'red', tier: 'gold', 'app.kubernetes.io/name': 'shop' };
    expect(fill(template, 'photos', labels)).toBe(path);
    expect(parsePathTemplate(template).depth).toBe(path.split('/').length);
  });

  test.each([
    ['', "'' cannot be the name of a folder"],
    ['/{name}', "'' cannot be the name of a folder"],
    ['{name}/', "'' cannot be the name of a folder"],
    ['a//{name}', "'' cannot be the name of a folder"],
    ['./{name}', "'.' cannot be the name of a folder"],
    ['../{name}', "'..' cannot be the name of a folder"],
    ['.stowage/{name}', "'.stowage' cannot be the name of a folder"],
    ['.{name}', "'.{name}' cannot be the name of a folder"],
    ['{name}.meta', "'{name}.meta' cannot be the name of a folder"],
    ['{label:team}.meta/{name}', "'{label:team}.meta' cannot be the name of a folder"],
    [`${'x'.repeat(256)}/{name}`, "xxx...' cannot be the name of a folder"],
    ['a\n/{name}', 'cannot be the name of a folder'],
    ['{volume}', '{volume} is unknown'],
    ['{}', '{} is unknown'],
    ['{label:}/{name}', '{label:} is unknown'],
    ['{label:a b}/{name}', '{label:a b} is unknown'],
    ['{Name}', '{Name} is unknown'],
    ['{name', 'a brace has no partner'],
    ['name}', 'a brace has no partner'],
    ['{{name}}', 'a brace has no partner'],
    ['fixed', 'two volumes could get the same path'],
    ['{name}/data', 'two volumes could get the same path'],
    ['{label:team}', 'two volumes could get the same path'],
    ['{label:team}-{name}', 'two volumes could get the same path'],
    ['{name}{label:team}', 'two volumes could get the same path'],
    ['1/2/3/4/5/6/7/8/{name}', 'it has more than 8 parts'],
  ])('%j is refused: %s', (template, why) => {
    const error = refusalOf(() => parsePathTemplate(template));
    expect(error).toMatchObject({ code: 'invalid', reason: 'store-option-invalid' });
    expect(error.message).toContain('is not a path template: ');
    expect(error.message).toContain(why);
    expect(error.action).toMatch(/^Build the path from \{name\}, \{id\} and \{label:KEY\}/);
  });

  test.each(['', 'absent'])('a label that is %j', (label) => {
    const labels: Labels = label === '' ? { team: '' } : { other: 'x' };
    expect(refusalOf(() => fill('{label:team}/{name}', 'photos', labels))).toMatchObject({
      code: 'invalid',
      reason: 'label-missing',
      message: "volume 'photos' needs the label 'team' in this store",
      action: "Create it with that label, for example --label team=VALUE: this store's directories are named after it.",
    });
  });

  test('names of Object.prototype are not labels', () => {
    expect(refusalOf(() => fill('{label:constructor}/{name}', 'photos')).reason).toBe('label-missing');
  });

  test.each(['a/b', '/', '.', '..', '.hidden', '../..', 'x.meta', 'a\nb', 'x'.repeat(256), '\0'])(
    'the label %j',
    (team) => {
      const error = refusalOf(() => fill('{label:team}/{name}', 'photos', { team }));
      expect(error).toMatchObject({ code: 'invalid', reason: 'label-unfit-for-path' });
      expect(error.action).toMatch(/use labels without slashes or a leading dot/);
    },
  );

  test('a path that is too long for a record is refused', () => {
    const long = 'x'.repeat(250);
    const labels = { a: long, b: long, c: long, d: long };
    expect(fill('{label:a}/{label:b}/{label:c}/{name}', 'photos', labels)).toHaveLength(759);
    expect(
      refusalOf(() => fill('{label:a}/{label:b}/{label:c}/{label:d}/y/{name}', 'x'.repeat(100), labels)),
    ).toMatchObject({
      reason: 'label-unfit-for-path',
    });
  });

  test('the name and labels of a volume are parsed from the path of an existing directory', () => {
    const { volumeAt } = parsePathTemplate('{label:team}/pvc-{name}');
    expect(volumeAt('red/pvc-photos')).toEqual({ name: 'photos', labels: { team: 'red' } });
    expect(volumeAt('red/photos')).toBeUndefined();
    expect(volumeAt('red/pvc-photos/deeper')).toBeUndefined();
    expect(volumeAt('red/pvc-.hidden')).toBeUndefined();
    expect(parsePathTemplate('{label:a}/{label:a}/{name}').volumeAt('red/blue/x')).toBeUndefined();
    expect(parsePathTemplate('{label:a}/{id}').volumeAt(`red/${id}`)).toBeUndefined();
  });
});

describe('in a store', () => {
  const storeWith = (pathTemplate: string): Promise<NfsStoreUnderTest> => nfsStoreOnDisk({ pathTemplate });
  const spec = (name: string, labels: Labels, more: Partial<VolumeSpec> = {}): VolumeSpec =>
    volumeSpec(name, { labels, ...more });
  const create = (store: FileStore, name: string, team: string): Promise<Volume> =>
    store.create(spec(name, { team }), scope);
  const pathOf = async (store: FileStore, volume: Volume): Promise<string> => {
    const source = await store.source(volume, scope);
    return source.kind === 'nfs' ? source.path : '';
  };

  test('folders are created with their first volume, and removed with the last', async () => {
    const { store, folder } = await storeWith('teams/{label:team}/{name}');
    const [a, b] = [await create(store, 'a', 'red'), await create(store, 'b', 'red')];
    const c = await create(store, 'c', 'blue');
    expect(await pathOf(store, a)).toBe('/export/teams/red/a');
    expect(readdirSync(join(folder, 'teams', 'red')).sort()).toEqual(['.stowage-folder', 'a', 'b']);
    writeFileSync(join(folder, 'teams', 'red', 'a', 'data'), 'x');
    await store.delete(a, scope);
    expect(readdirSync(join(folder, 'teams', 'red')).sort()).toEqual(['.stowage-folder', 'b']);
    await store.delete(b, scope);
    expect(readdirSync(join(folder, 'teams')).sort()).toEqual(['.stowage-folder', 'blue']);
    await store.delete(c, scope);
    expect(readdirSync(folder)).toEqual(['.stowage']);
  });

  test('a refused volume without the label, or with one that leads out of the store, leaves nothing', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    expect(await refusal(store.create(spec('a', {}), scope))).toMatchObject({ reason: 'label-missing' });
    for (const team of ['..', '../out', '.stowage', 'x/y', 'a.meta'])
      expect(await refusal(create(store, 'a', team)), team).toMatchObject({ reason: 'label-unfit-for-path' });
    expect(readdirSync(folder)).toEqual(['.stowage']);
  });

  test('a name is one volume, whatever its labels', async () => {
    const { store } = await storeWith('{label:team}/{name}');
    await create(store, 'a', 'red');
    const other = store.create(spec('a', { team: 'blue' }, { requestId: 'another' }), scope);
    expect(await refusal(other)).toMatchObject({ code: 'exists', reason: 'volume-exists' });
  });

  test('renaming, and changing labels, leave the data where they are', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    const made = await create(store, 'a', 'red');
    writeFileSync(join(folder, 'red', 'a', 'data'), 'x');
    const renamed = await store.rename(made, volumeName('b'), scope);
    const labelled = await store.label(renamed, { team: 'blue' }, scope);
    expect(await pathOf(store, labelled)).toBe('/export/red/a');
    expect(await store.get(volumeName('b'), scope)).toEqual({ condition: 'ok', path: 'red/a', volume: labelled });
    expect(await store.get(volumeName('a'), scope)).toBeUndefined();
    await store.delete(labelled, scope);
    expect(readdirSync(folder)).toEqual(['.stowage']);
  });

  test('a renamed volume keeps its directory, and no other volume gets it', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    const made = await create(store, 'a', 'red');
    writeFileSync(join(folder, 'red', 'a', 'data'), 'x');
    await store.rename(made, volumeName('b'), scope);
    const recreation = store.create(spec('a', { team: 'red' }, { requestId: 'another' }), scope);
    expect(await refusal(recreation)).toMatchObject({ code: 'exists' });
    expect(readFileSync(join(folder, 'red', 'a', 'data'), 'utf8')).toBe('x');
  });

  test('a volume is restored from the trash at its old path', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    const made = await create(store, 'a', 'red');
    writeFileSync(join(folder, 'red', 'a', 'data'), 'x');
    await store.trash.put(made, keptForAWeek(5), scope);
    expect(readdirSync(folder)).toEqual(['.stowage']);
    const restored = await store.trash.restore(made.id, volumeName('b'), scope);
    expect(await pathOf(store, restored)).toBe('/export/red/a');
    expect(readFileSync(join(folder, 'red', 'a', 'data'), 'utf8')).toBe('x');
    expect(existsSync(join(folder, 'red', '.stowage-folder'))).toBe(true);
  });

  test('a volume whose path belongs to another volume by now is restored beside it', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    const first = await create(store, 'a', 'red');
    writeFileSync(join(folder, 'red', 'a', 'data'), 'first');
    await store.trash.put(first, keptForAWeek(5), scope);
    const second = await store.create(spec('a', { team: 'red' }, { requestId: 'another' }), scope);
    const restored = await store.trash.restore(first.id, volumeName('b'), scope);
    const path = await pathOf(store, restored);
    expect(path).toMatch(/^\/export\/red\/a-[0-9a-f]{8}$/);
    expect(readFileSync(join(folder, path.slice('/export/'.length), 'data'), 'utf8')).toBe('first');
    expect(await pathOf(store, second)).toBe('/export/red/a');
    expect(await store.housekeeping.orphans(scope)).toEqual([]);
  });

  test('an empty volume never becomes the folder of another', async () => {
    const storeUnderTest = await storeWith('{label:team}/{name}');
    const { store, folder } = storeUnderTest;
    const other = await storeUnderTest.another('instance-2', { pathTemplate: '{name}' });
    const red = await other.create(spec('red', {}), scope);
    const creation = store.create(spec('a', { team: 'red' }), scope);
    expect(await refusal(creation)).toMatchObject({ code: 'exists', reason: 'folder-occupied' });
    expect(readdirSync(join(folder, 'red'))).toEqual([]);
    expect(readdirSync(folder).sort()).toEqual(['.stowage', 'red', 'red.meta']);
    await other.delete(red, scope);
    await store.create(spec('a', { team: 'red' }, { requestId: 'again' }), scope);
  });

  test('a folder that a crash left without its marker is used', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    await mkdir(join(folder, 'red'));
    await create(store, 'a', 'red');
    expect(readdirSync(join(folder, 'red')).sort()).toEqual(['.stowage-folder', 'a']);
  });

  test('a released volume is adopted at its old path', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    const made = await create(store, 'a', 'red');
    writeFileSync(join(folder, 'red', 'a', 'data'), 'x');
    await store.adoption.release(made, scope);
    expect(await store.adoption.adoptable(scope)).toEqual([{ name: 'a' }]);
    const adopted = await store.adoption.adopt(volumeName('a'), spec('a', {}, { requestId: 'adopt' }), scope);
    expect(adopted.id).toBe(made.id);
    expect(await pathOf(store, adopted)).toBe('/export/red/a');
  });

  test('folders are not volumes, and cannot be adopted', async () => {
    const storeUnderTest = await storeWith('{label:team}/{name}');
    const made = await create(storeUnderTest.store, 'a', 'red');
    expect((await storeUnderTest.store.adoption.adoptable(scope)).filter(({ reason }) => reason === undefined)).toEqual(
      [],
    );
    const orphans = await storeUnderTest.store.housekeeping.orphans(scope);
    expect(orphans.filter(({ kind }) => kind === 'unrecorded-directory')).toEqual([]);
    const adopting = storeUnderTest.store.adoption.adopt(volumeName('red'), spec('red', {}), scope);
    expect(await refusal(adopting)).toMatchObject({ code: 'conflict', reason: 'not-adoptable' });
    const readOnly = await storeUnderTest.reopenReadOnly();
    expect(await readOnly.names(scope)).toEqual(['a']);
    expect(await Array.fromAsync(readOnly.list(scope))).toMatchObject([{ id: made.id }]);
    expect(await pathOf(readOnly, made)).toBe('/export/red/a');
    expect(await readOnly.get(volumeName('red'), scope)).toBeUndefined();
  });

  test('no volume is created inside a folder that Stowage did not make', async () => {
    const { store, folder } = await storeWith('{label:team}/{name}');
    await mkdir(join(folder, 'red', 'something'), { recursive: true });
    expect(await refusal(create(store, 'a', 'red'))).toMatchObject({ code: 'exists', reason: 'folder-occupied' });
    expect(readdirSync(folder).sort()).toEqual(['.stowage', 'red']);
    expect(readdirSync(join(folder, 'red'))).toEqual(['something']);
  });

  test('a store that is opened with another template keeps the paths of its volumes', async () => {
    const storeUnderTest = await storeWith('{label:team}/{name}');
    const made = await create(storeUnderTest.store, 'a', 'red');
    const other = await storeUnderTest.another('instance-2', { pathTemplate: '{name}' });
    expect(await pathOf(other, made)).toBe('/export/red/a');
    const creation = other.create(spec('red', {}), scope);
    expect(await refusal(creation)).toMatchObject({ code: 'exists' });
  });
});
