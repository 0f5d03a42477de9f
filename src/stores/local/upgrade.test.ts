import { cp, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Volume } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { openLocal } from '#testing/local-store.ts';
import type { FileStore } from '../file-store/verbs.ts';

let root: string;
let store: FileStore;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'stowage-upgrade-'));
  await cp(join(import.meta.dirname, 'fixtures', 'version-0'), root, { recursive: true });
  store = await openLocal(root);
  await store.housekeeping.sweep(scope);
});
afterEach(async () => {
  await store.close();
  await rm(root, { recursive: true });
});

const alpha = {
  id: 'sv1-00000000-0000-4000-8000-000000000001',
  name: 'alpha',
  store: 'test',
  bytes: 1073741824n,
  enforce: false,
  access: 'filesystem',
  labels: { team: 'a' },
  requestId: 'alpha',
  createdAt: 1700000000000,
  revision: 1,
  instance: 'instance-1',
} as unknown as Volume;

test('a store of format version 0 has all its volumes, with later fields filled in', async () => {
  const all = (await Array.fromAsync(store.list(scope))).toSorted((a, b) => (a.name < b.name ? -1 : 1));
  expect(all.map(({ name }) => name)).toEqual(['alpha', 'beta']);
  expect(all[0]).toEqual(alpha);
  expect(all[1]?.bytes).toBeUndefined();
  expect(await store.get(alpha.name, scope)).toEqual({ volume: alpha, condition: 'ok' });
  expect((await store.housekeeping.orphans(scope)).map(({ name }) => name)).toEqual(['gamma']);
});

test('a retry of a request of version 0 returns its volume', async () => {
  const { store: _store, revision: _revision, ...spec } = alpha;
  expect(await store.create(spec, scope)).toEqual(alpha);
});

test('a change writes the current version', async () => {
  const changed = await store.label(alpha, { team: 'b' }, scope);
  expect(changed).toEqual({ ...alpha, labels: { team: 'b' }, revision: 2 });
  expect(JSON.parse(await readFile(join(root, 'alpha.meta'), 'utf8'))).toMatchObject({
    version: 1,
    instance: 'instance-1',
  });
  expect(await readFile(join(root, 'alpha', 'file'), 'utf8')).toBe('kept since version 0\n');
});

test('the trash of version 0 can be restored', async () => {
  const [entry] = await store.trash.list(scope);
  expect(entry).toMatchObject({
    deletedAt: 1700000001000,
    volume: { name: 'trashed', access: 'filesystem', revision: 1 },
  });
  if (entry === undefined) throw new Error('the trash is empty');
  await store.trash.restore(entry.volume.id, entry.volume.name, scope);
  expect(await readFile(join(root, 'trashed', 'file'), 'utf8')).toBe('deleted in version 0\n');
});

test('a trash entry of version 0 gets a date when it is first seen, and keeps it', async () => {
  const week = 7 * 86_400_000;
  expect(await store.trash.list(scope)).toMatchObject([{ expiresAt: undefined }]);
  const before = Date.now();
  expect(await store.trash.listExpired(week, scope)).toEqual([]);
  const [entry] = await store.trash.list(scope);
  expect(entry?.expiresAt).toBeGreaterThanOrEqual(before + week);
  expect(entry?.expiresAt).toBeLessThanOrEqual(Date.now() + week);
  expect(await store.trash.listExpired(1, scope)).toEqual([]);
  expect(await store.trash.list(scope)).toEqual([entry]);
});

test('a volume released in version 0 is adopted under its old id', async () => {
  const { store: _store, revision: _revision, ...spec } = alpha;
  const adopted = await store.adoption.adopt(volumeName('gamma'), { ...spec, requestId: 'adopt' }, scope);
  expect(adopted).toMatchObject({ id: 'sv1-00000000-0000-4000-8000-000000000004', name: 'gamma' });
});
