import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { VolumeRef, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { type Replacements, readTree, type Tree, writeTree } from '#testing/golden/folder-tree.ts';
import { openLocal } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import type { FileStore } from '../file-store/verbs.ts';

/** The folder of a store that 0.1 left. It never changes: a new format needs a new fixture. */
const fixture = (layout: string): Promise<Tree> =>
  readFile(new URL(`fixtures/version-1-${layout}.json`, import.meta.url), 'utf8').then((text) => JSON.parse(text));

const replacements: Replacements = [
  [/"store":"[0-9a-f-]{36}"/g, '"store":"7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11"'],
  [/"pid":\d+/g, '"pid":1'],
  [/"mark":"[0-9a-f]{16}"/g, '"mark":"0123456789abcdef"'],
  [/"(elapsed|at)":\d+/g, '"$1":0'],
  [/"expiresAt":\d+/g, '"expiresAt":1700604801000'],
];
const deletedAt = 1_700_000_001_000;
const week = 604_800_000;

const ref = (n: number, name: string): VolumeRef => ({
  id: `sv1-00000000-0000-4000-8000-00000000000${n}` as VolumeRef['id'],
  name: volumeName(name),
});
const spec = (n: number, name: string, more: Partial<VolumeSpec> = {}): VolumeSpec => ({
  ...ref(n, name),
  bytes: undefined,
  access: 'filesystem',
  labels: {},
  requestId: `request ${name}`,
  createdAt: 1_700_000_000_000,
  instance: 'instance-1',
  ...more,
});

async function emptyRoot(): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), 'stowage-stored-'));
  onTestFinished(() => rm(root, { recursive: true }));
  return root;
}

async function openStore(root: string, layout: string): Promise<FileStore> {
  const store = await openLocal(root, { options: { layout } });
  onTestFinished(() => store.close());
  return store;
}

/** Creates every kind of file that a store can have. */
async function fill(store: FileStore, root: string, more: Partial<VolumeSpec>): Promise<void> {
  const names = ['alpha', 'before', 'trashed', 'released'];
  for (const [index, name] of names.entries()) await store.create(spec(index + 1, name, more), scope);
  await store.label(ref(1, 'alpha'), { team: 'a' }, scope);
  await store.rename(ref(2, 'before'), volumeName('renamed'), scope);
  if (more.access !== 'block') await writeFile(join(root, 'trashed', 'file'), 'deleted in version 1\n');
  await store.trash.put(ref(3, 'trashed'), keptForAWeek(deletedAt), scope);
  await store.adoption.release(ref(4, 'released'), scope);
  // Makes the host record how long it has observed the trash.
  await store.trash.listExpired(week, scope);
}

describe.each([
  ['directory', { bytes: 2n ** 30n }],
  ['image', { bytes: 2n ** 24n, access: 'block' }],
] as const)('a store with layout=%s', (layout, more) => {
  test('has the same bytes as one of 0.1', async () => {
    const root = await emptyRoot();
    await fill(await openStore(root, layout), root, more);
    expect(await readTree(root, replacements)).toEqual(await fixture(layout));
  });

  describe('that 0.1 left', () => {
    let store: FileStore;
    beforeEach(async () => {
      const root = await emptyRoot();
      await writeTree(root, await fixture(layout));
      store = await openStore(root, layout);
      await store.housekeeping.sweep(scope);
    });

    test('opens as the same store, with all its volumes', async () => {
      expect(store.identity).toBe('7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11');
      const all = await Array.fromAsync(store.list(scope));
      const volume = { ...spec(1, 'alpha', more), enforce: false, store: 'test', revision: 2 };
      expect(all.toSorted((a, b) => (a.name < b.name ? -1 : 1))).toEqual([
        { ...volume, labels: { team: 'a' } },
        { ...volume, ...ref(2, 'renamed'), requestId: 'request before' },
      ]);
      const released = layout === 'image' ? 'released.img' : 'released';
      expect((await store.housekeeping.orphans(scope)).map(({ name }) => name)).toEqual([released]);
    });

    test('returns the same volume for a repeated request', async () => {
      expect(await store.create(spec(1, 'alpha', { ...more, labels: { team: 'a' } }), scope)).toMatchObject(
        ref(1, 'alpha'),
      );
    });

    test('restores a volume from the trash, with the same dates', async () => {
      const [entry] = await store.trash.list(scope);
      expect(entry).toMatchObject({ deletedAt, expiresAt: deletedAt + week, volume: ref(3, 'trashed') });
      await store.trash.restore(ref(3, 'trashed').id, volumeName('back'), scope);
      expect((await store.get(volumeName('back'), scope))?.condition).toBe('ok');
    });
  });
});

test('a volume that 0.1 released is adopted under its old id', async () => {
  const root = await emptyRoot();
  await writeTree(root, await fixture('directory'));
  const store = await openStore(root, 'directory');
  const adoptSpec = spec(9, 'released', { bytes: 2n ** 30n, requestId: 'adopt' });
  expect(await store.adoption.adopt(volumeName('released'), adoptSpec, scope)).toMatchObject(ref(4, 'released'));
});
