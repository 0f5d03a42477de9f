import { lstat, mkdtemp, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Use, VolumeRef, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { type Replacements, readTree, type Tree, writeTree } from '#testing/golden/folder-tree.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { createNfsStoreKind } from './kind.ts';
import { createMarks, isFreeMark, isProcessMark, isProcessMarkTime } from './lock-marks.ts';

/** The export of a store that 0.1 left. It never changes: a new format needs a new fixture. */
const fixture = async (): Promise<Tree> =>
  JSON.parse(await readFile(new URL('fixtures/version-1.json', import.meta.url), 'utf8'));

const replacements: Replacements = [
  // The text of a marker file is for people; only its existence counts.
  [/^[A-Z][^{}\n]*\.\n$/g, 'For people.\n'],
  [/"store":"[0-9a-f-]{36}"/g, '"store":"7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11"'],
  [/"mark":"[0-9a-f]{16}"/g, '"mark":"0123456789abcdef"'],
  [/"(elapsed|at)":\d+/g, '"$1":0'],
  [/"expiresAt":\d+/g, '"expiresAt":1700604801000'],
];
const deletedAt = 1_700_000_001_000;
const week = 604_800_000;
const options = { pathTemplate: '{label:team}/{name}' };
const sized = { bytes: 2n ** 30n, enforce: true, labels: { team: 'a' } };

const ref = (n: number, name: string): VolumeRef => ({
  id: `sv1-00000000-0000-4000-8000-00000000000${n}` as VolumeRef['id'],
  name: volumeName(name),
});
const spec = (n: number, name: string): VolumeSpec => ({
  ...ref(n, name),
  ...sized,
  access: 'filesystem',
  requestId: `request ${name}`,
  createdAt: 1_700_000_000_000,
  instance: 'instance-1',
});
const use: Use = {
  host: 'host-1',
  node: 'node-1' as NodeName,
  users: [
    { kind: 'container', name: 'web' },
    { kind: 'pod', name: 'default/web' },
  ],
};
const other: Use = { host: 'host-2', node: 'node-2' as NodeName, users: [{ kind: 'path', name: '/mnt/a' }] };

async function emptyRoot(): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), 'stowage-stored-'));
  onTestFinished(() => rm(root, { recursive: true }));
  return root;
}

async function openStore(root: string): Promise<FileStore> {
  const kind = createNfsStoreKind(systemClock(), connectToDisk(root));
  const store = await openNfs({ uri: 'nfs://nowhere/export', options, kind, marks: { own: 1000, dead: [] } });
  onTestFinished(() => store.close());
  return store;
}

async function fill(store: FileStore, root: string): Promise<void> {
  for (const [index, name] of ['alpha', 'before', 'trashed', 'released'].entries())
    await store.create(spec(index + 1, name), scope);
  await store.rename(ref(2, 'before'), volumeName('renamed'), scope);
  await writeFile(join(root, 'a', 'trashed', 'file'), 'deleted in version 1\n');
  await store.trash.put(ref(3, 'trashed'), keptForAWeek(deletedAt), scope);
  await store.adoption.release(ref(4, 'released'), scope);
  await store.trash.listExpired(week, scope);
  // `source` creates the quota folder, and `expand` writes the new size into it.
  await store.source(ref(1, 'alpha'), scope);
  await store.expand(ref(1, 'alpha'), 2n ** 31n, scope);
  await store.uses?.put(ref(1, 'alpha'), use, scope);
  await store.uses?.put(ref(1, 'alpha'), other, scope);
  await store.uses?.takeWriter(ref(1, 'alpha'), 'host-1', scope);
}

test('an NFS store is byte for byte the one that 0.1 leaves', async () => {
  const root = await emptyRoot();
  await fill(await openStore(root), root);
  expect(await readTree(root, replacements)).toEqual(await fixture());
});

describe('an NFS store that 0.1 left', () => {
  let root: string;
  let store: FileStore;
  beforeEach(async () => {
    root = await emptyRoot();
    await writeTree(root, await fixture());
    for (const path of Object.keys(await fixture()).filter((one) => one.includes('/locks/')))
      await utimes(join(root, path), 1, 1);
    store = await openStore(root);
    await store.housekeeping.sweep(scope);
  });

  test('is the same store, with all its volumes', async () => {
    expect(store.identity).toBe('7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11');
    const all = await Array.fromAsync(store.list(scope));
    const volume = { ...spec(1, 'alpha'), store: 'test', revision: 2 };
    expect(all.toSorted((a, b) => (a.name < b.name ? -1 : 1))).toEqual([
      { ...volume, bytes: 2n ** 31n },
      { ...volume, ...ref(2, 'renamed'), requestId: 'request before' },
    ]);
    expect((await store.get(ref(1, 'alpha').name, scope))?.path).toBe('a/alpha');
  });

  test('lists the users of a volume, and refuses to delete it', async () => {
    const uses = (await store.uses?.list(ref(1, 'alpha').id, scope)) ?? [];
    expect(uses.toSorted((a, b) => (a.host < b.host ? -1 : 1))).toMatchObject([
      { ...use, writer: true },
      { ...other, writer: false },
    ]);
    await expect(store.delete(ref(1, 'alpha'), scope)).rejects.toMatchObject({ code: 'in-use' });
    await store.delete(ref(2, 'renamed'), scope);
  });

  test('restores a volume from the trash, with the same dates', async () => {
    const [entry] = await store.trash.list(scope);
    expect(entry).toMatchObject({ deletedAt, expiresAt: deletedAt + week, volume: ref(3, 'trashed') });
    await store.trash.restore(ref(3, 'trashed').id, volumeName('back'), scope);
    expect((await store.get(volumeName('back'), scope))?.condition).toBe('ok');
  });
});

describe('the lock of a volume', () => {
  const marks = createMarks({ own: 1000, dead: [1001] });

  test('is held while the mtime is a process mark (a date before 1987), and free at second 1', async () => {
    expect(marks.next().seconds).toBe(1000);
    expect(marks.free().seconds).toBe(1);
    expect([1000, 1001, 1002].map(marks.isOurs)).toEqual([true, true, false]);
    expect([1, 2, 2 ** 29 - 1, 2 ** 29].map((mtime) => isProcessMarkTime({ mtime }))).toEqual([
      false,
      true,
      true,
      false,
    ]);
    expect([0, 1, 2].map((mtime) => isFreeMark({ mtime }))).toEqual([false, true, false]);
    expect([1, 2, 2 ** 29 - 1, 2 ** 29].map(isProcessMark)).toEqual([false, true, true, false]);
  });

  test('is an empty file, which is left with the mtime of a free lock', async () => {
    const root = await emptyRoot();
    const store = await openStore(root);
    await store.create(spec(1, 'alpha'), scope);
    await store.label(ref(1, 'alpha'), { team: 'b' }, scope);
    const lock = await lstat(join(root, '.stowage', 'locks', ref(1, 'alpha').id));
    expect({ size: lock.size, seconds: Math.floor(lock.mtimeMs / 1000) }).toEqual({ size: 0, seconds: 1 });
  });
});
