import { rmSync } from 'node:fs';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName, Volume } from '#core/model.ts';
import type { Uses } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { aCall } from '#testing/core-calls.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { type Api, startServer, type TestServer } from '#testing/server.ts';

let folder: string;
let server: TestServer;
let admin: Api;
let volume: Volume;
let count = 0;

beforeAll(async () => {
  folder = quickFolder('rest-uses');
  const nfs = createNfsStoreKind(systemClock(), connectToDisk(folder));
  server = await startServer({ kinds: [createLocalStoreKind(), nfs] });
  admin = await server.as('admin');
  await server.core.stores.add('silver', 'nfs://nowhere/export', aCall());
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  const wanted = { store: 'silver', name: `photos-${++count}`, bytes: undefined, access: undefined, labels: {} };
  volume = await server.core.volumes.create(wanted, aCall());
});

/** Accesses the use records as another host would. */
const elsewhere = <T>(work: (uses: Uses) => Promise<T>): Promise<T> =>
  server.core.stores.use('silver', (store) => work(store.uses as Uses));
const use = (host: string) =>
  ({ host, node: `node of ${host}` as NodeName, users: [{ kind: 'pod', name: 'web-0' }] }) as const;
const path = (host: string): string => `/v1/volumes/${volume.id}/uses/${host}`;

test('shows the hosts that use a volume', async () => {
  expect((await admin.get(`/v1/volumes/${volume.id}`)).body.uses).toEqual([]);
  await elsewhere((uses) => uses.put(volume, use('h1'), aCall()));
  await elsewhere((uses) => uses.takeWriter(volume, 'h2', aCall()));
  const { body } = await (await server.as('viewer')).get(`/v1/volumes/silver..${volume.name}`);
  const renewedAt = expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/);
  expect(body.uses.toSorted((a: { host: string }, b: { host: string }) => (a.host < b.host ? -1 : 1))).toEqual([
    { ...use('h1'), writer: false, stale: false, renewedAt },
    { host: 'h2', node: 'h2', users: [], writer: true, stale: false, renewedAt },
  ]);
  expect((await admin.get('/v1/volumes?store=silver')).body.items[0]).not.toHaveProperty('uses');
});

test('shows no hosts for a store without use records', async () => {
  await admin.post('/v1/volumes', { name: 'here', store: 'local' });
  expect((await admin.get('/v1/volumes/here')).body.uses).toBe(null);
  expect(await admin.delete('/v1/volumes/here/uses/h1')).toMatchObject({
    status: 422,
    body: { code: 'unsupported', reason: 'uses-unsupported', action: expect.stringContaining('stowage mounts') },
  });
});

test('an administrator breaks the use record and the writer record of a host, and keeps those of other hosts', async () => {
  for (const host of ['h1', 'h2']) await elsewhere((uses) => uses.put(volume, use(host), aCall()));
  await elsewhere((uses) => uses.takeWriter(volume, 'h1', aCall()));
  const refused = await admin.delete(`/v1/volumes/${volume.id}`);
  expect(refused).toMatchObject({ status: 409, body: { code: 'in-use', reason: 'volume-in-use-elsewhere' } });
  expect(refused.body.action).toContain(`stowage volume release silver/${volume.name} --host h`);

  expect(await (await server.as('user')).delete(path('h1'))).toMatchObject({ status: 403, body: { code: 'denied' } });
  expect(await (await server.as('admin', 'local')).delete(path('h1'))).toMatchObject({ status: 404 });
  expect((await admin.get(`/v1/volumes/${volume.id}`)).body.uses).toHaveLength(2);

  expect((await admin.delete(path('h1'))).status).toBe(204);
  expect((await admin.get(`/v1/volumes/${volume.id}`)).body.uses).toMatchObject([{ host: 'h2', writer: false }]);
  const { items } = (await admin.get('/v1/operations')).body;
  expect(items[0]).toMatchObject({ kind: 'volume.release', state: 'done', subject: `silver/${volume.name}` });
  expect((await admin.delete(path('h2'))).status).toBe(204);
  expect((await admin.delete(`/v1/volumes/${volume.id}`)).status).toBe(200);
});

test('a repeat with the same key gets the first answer, and a new request is refused', async () => {
  await elsewhere((uses) => uses.put(volume, use('h1'), aCall()));
  for (let i = 0; i < 2; i++) expect((await admin.delete(path('h1'), { 'idempotency-key': 'k' })).status).toBe(204);
  expect(await admin.delete(path('h1'))).toMatchObject({
    status: 404,
    body: {
      code: 'not-found',
      reason: 'use-unknown',
      detail: `host 'h1' has no use record of volume 'silver/${volume.name}'`,
      action: `List the use records with their host ids: stowage volume show silver/${volume.name}`,
    },
  });
});

test.each(['..%2fh1', '.writer', '%00', '.'])('the invalid host id %s is refused', async (host) => {
  await elsewhere((uses) => uses.takeWriter(volume, 'h1', aCall()));
  expect((await admin.delete(path(host))).status).toBe(404);
  expect(await elsewhere((uses) => uses.list(volume.id, aCall()))).toHaveLength(1);
});

test('an interrupted release is finished after a crash', async () => {
  await elsewhere((uses) => uses.put(volume, use('h1'), aCall()));
  const { steps } = server.core.uses;
  const params = { id: volume.id, name: volume.name, host: 'h1' };
  const { config } = server.core.stores.view('silver');
  const work = { ...aCall(), operation: 'op1-x' as never, progress: () => undefined };
  for (let i = 0; i < 2; i++)
    await server.core.stores.use('silver', async (store) => {
      await steps['volume.release']?.(store, config, params, work);
    });
  expect(await elsewhere((uses) => uses.list(volume.id, aCall()))).toEqual([]);
});
