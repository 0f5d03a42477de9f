import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NfsConnection, Volume } from '#core/model.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { exportFolder, openNfs } from '#testing/nfs-store.ts';
import { type Api, startServer } from '#testing/server.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { createNfsStoreKind } from './kind.ts';

const GiB = 1024n ** 3n;
let folder: string;
let store: FileStore;

const kind = () => createNfsStoreKind(systemClock(), connectToDisk(folder));
const open = async (options: Readonly<Record<string, string>> = {}, readOnly = false): Promise<FileStore> => {
  const opened = await openNfs({ uri: 'nfs://nowhere/export', options, readOnly, kind: kind() });
  onTestFinished(() => opened.close());
  return opened;
};
const wayOf = async (volume: Volume, from: FileStore = store): Promise<NfsConnection> => {
  const source = await from.source(volume, scope);
  if (source.kind !== 'nfs') throw new Error(`a source of kind ${source.kind}`);
  return source.way;
};
const ledgerOf = ({ id }: Volume): string => join(folder, '.stowage', 'quota', id);
const createEnforced = (name = 'a', bytes = GiB): Promise<Volume> =>
  store.create(volumeSpec(name, { bytes, enforce: true }), scope);

beforeEach(async () => {
  folder = join(await exportFolder(), 'export');
  await mkdir(folder);
  onTestFinished(() => rm(join(folder, '..'), { recursive: true, force: true }));
  store = await open();
});

test('the source of a volume with an enforced size has the size and the ledger folder', async () => {
  const volume = await createEnforced();
  expect(existsSync(ledgerOf(volume))).toBe(false);
  const { quota } = await wayOf(volume);
  expect(quota).toEqual({ bytes: Number(GiB), ledger: expect.stringMatching(/^[A-Za-z0-9+/]+=*$/) });
  expect(existsSync(ledgerOf(volume))).toBe(true);
  expect((await wayOf(volume)).quota).toEqual(quota);
  expect((await wayOf(await createEnforced('b'))).quota?.ledger).not.toBe(quota?.ledger);
});

test('a refused deletion of a volume that is not empty keeps the ledger, and a deletion removes it', async () => {
  const volume = await createEnforced();
  const { quota } = await wayOf(volume);
  await writeFile(join(folder, 'a', 'file'), '');
  const deleteIfEmpty = () => store.delete(volume, scope, { onlyIfEmpty: true });
  await expect(deleteIfEmpty()).rejects.toMatchObject({ reason: 'volume-not-empty' });
  expect((await wayOf(volume)).quota).toEqual(quota);
  await rm(join(folder, 'a', 'file'));
  await deleteIfEmpty();
  expect(existsSync(ledgerOf(volume))).toBe(false);
});

test('other volumes have no quota and no ledger', async () => {
  const volume = await store.create(volumeSpec('a', { bytes: GiB }), scope);
  expect((await wayOf(volume)).quota).toBeUndefined();
  expect(existsSync(ledgerOf(volume))).toBe(false);
});

test('a volume larger than 2^53 bytes gets the largest exact quota', async () => {
  expect((await wayOf(await createEnforced('a', 1024n ** 6n))).quota?.bytes).toBe(Number.MAX_SAFE_INTEGER);
});

test('an expansion reaches the clients that have the volume mounted', async () => {
  const volume = await createEnforced();
  await store.expand(volume, 2n * GiB, scope);
  expect(existsSync(ledgerOf(volume))).toBe(false);
  await wayOf(volume);
  await store.expand(volume, 3n * GiB, scope);
  expect(JSON.parse(readFileSync(join(ledgerOf(volume), 'limit'), 'utf8'))).toEqual({
    version: 1,
    bytes: Number(3n * GiB),
  });
  expect((await wayOf(volume)).quota?.bytes).toBe(Number(3n * GiB));
});

describe.each([
  ['deleted', (volume: Volume) => store.delete(volume, scope)],
  ['put into the trash', (volume: Volume) => store.trash.put(volume, keptForAWeek(1), scope)],
  ['released', (volume: Volume) => store.adoption.release(volume, scope)],
])('when it is %s', (_how, removeVolume) => {
  test('the ledger is removed, whether the volume was mounted or not', async () => {
    const [a, b] = [await createEnforced('a'), await createEnforced('b')];
    await wayOf(a);
    await store.expand(a, 2n * GiB, scope);
    for (const volume of [a, b]) {
      await removeVolume(volume);
      expect(existsSync(ledgerOf(volume))).toBe(false);
    }
  });
});

test('a store with client=host cannot enforce sizes, and still shows volumes whose size is enforced', async () => {
  const volume = await createEnforced();
  const byHost = await open({ client: 'host' });
  expect(byHost.enforcement).toBeUndefined();
  expect((await wayOf(volume, byHost)).quota).toMatchObject({ bytes: Number(GiB) });
});

test('a read-only store has no quotas', async () => {
  const volume = await createEnforced();
  const readOnly = await open({}, true);
  expect((await readOnly.get(volume.name, scope))?.volume.enforce).toBe(true);
  expect((await wayOf(volume, readOnly)).quota).toBeUndefined();
});

describe('through the API', () => {
  let api: Api;
  beforeEach(async () => {
    const server = await startServer({ kinds: [kind(), createLocalStoreKind()] });
    onTestFinished(() => server[Symbol.asyncDispose]());
    const admin = await server.as('admin');
    expect((await admin.post('/v1/stores', { name: 'nfs', uri: 'nfs://nowhere/export' })).status).toBe(201);
    const host = { name: 'host', uri: 'nfs://elsewhere/export?client=host' };
    expect((await admin.post('/v1/stores', host)).status).toBe(201);
    api = await server.as('user');
  });

  const create = (body: object) => api.post('/v1/volumes', { store: 'nfs', name: 'a', ...body });

  test('a user can enforce the size when creating a volume', async () => {
    expect(await create({ bytes: '1024', enforce: true })).toMatchObject({ status: 201, body: { enforced: true } });
    expect((await api.get('/v1/volumes/a')).body.enforced).toBe(true);
    expect((await api.get('/v1/volumes')).body.items).toMatchObject([{ name: 'a', enforced: true }]);
  });

  test('a user can enforce the size later, and not undo it', async () => {
    expect((await create({ bytes: '1024' })).body.enforced).toBe(false);
    expect(await api.patch('/v1/volumes/a', { enforce: false })).toMatchObject({ status: 200, body: { revision: 1 } });
    const on = await api.patch('/v1/volumes/a', { enforce: true });
    expect(on).toMatchObject({ status: 200, body: { enforced: true, revision: 2 } });
    expect((await api.patch('/v1/volumes/a', { enforce: true })).body).toEqual(on.body);
    const off = await api.patch('/v1/volumes/a', { enforce: false });
    expect(off).toMatchObject({ status: 422, body: { reason: 'enforcement-permanent' } });
    expect(off.body.action).toContain('stowage volume expand nfs/a SIZE');
    expect((await api.get('/v1/volumes/a')).body.enforced).toBe(true);
  });

  test('the size of a volume without one cannot be enforced', async () => {
    expect(await create({ enforce: true })).toMatchObject({
      status: 400,
      body: { reason: 'enforcement-without-size' },
    });
    await create({});
    expect(await api.patch('/v1/volumes/a', { enforce: true })).toMatchObject({
      status: 400,
      body: { reason: 'enforcement-without-size' },
    });
  });

  test.each(['host', 'local'])(
    'the size of a volume in store %s, which cannot enforce it, is refused',
    async (storeName) => {
      const refusal = {
        status: 422,
        body: { reason: 'enforcement-unsupported', action: expect.stringMatching(/^Use /) },
      };
      expect(await create({ store: storeName, bytes: '1024', enforce: true })).toMatchObject(refusal);
      expect((await create({ store: storeName, bytes: '1024' })).status).toBe(201);
      expect(await api.patch(`/v1/volumes/${storeName}..a`, { enforce: true })).toMatchObject(refusal);
    },
  );

  test('labels and enforcement are changed one at a time', async () => {
    await create({ bytes: '1024' });
    for (const body of [{}, { labels: { a: 'b' }, enforce: true }])
      expect(await api.patch('/v1/volumes/a', body)).toMatchObject({
        status: 400,
        body: { reason: 'request-invalid' },
      });
    expect((await api.get('/v1/volumes/a')).body.revision).toBe(1);
  });

  test('the same request with another enforcement is another request', async () => {
    const key = { 'idempotency-key': 'k' };
    const want = { store: 'nfs', name: 'a', bytes: '1024' };
    expect((await api.post('/v1/volumes', want, key)).status).toBe(201);
    expect((await api.post('/v1/volumes', { ...want, enforce: true }, key)).status).toBe(409);
  });
});
