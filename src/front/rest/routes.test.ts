import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Api, startServer, type TestServer } from '#testing/server.ts';

let server: TestServer;
let api: Api;

beforeAll(async () => {
  server = await startServer();
  api = await server.as('admin');
});
afterAll(() => server[Symbol.asyncDispose]());

const problem = (status: number, code: string) => ({
  status,
  body: { status, code, action: expect.stringMatching(/./) },
});

describe('volumes', () => {
  test('create answers 201 with the volume, its location and its entity tag', async () => {
    const { status, body, headers } = await api.post('/v1/volumes', { name: 'a', bytes: '1024', labels: { app: 'x' } });
    expect(status).toBe(201);
    expect(body).toEqual({
      id: expect.stringMatching(/^sv1-/),
      store: 'local',
      name: 'a',
      bytes: '1024',
      enforced: false,
      access: 'filesystem',
      labels: { app: 'x' },
      createdAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
      revision: 1,
      storeIdentity: (await api.get('/v1/stores/local')).body.identity,
    });
    expect(headers.location).toBe(`/v1/volumes/${body.id}`);
    expect(headers.etag).toBe('"1"');
    expect((await api.get(headers.location ?? '')).body.id).toBe(body.id);
  });

  test('show returns condition and users, by id, by name and by store..name', async () => {
    const { id } = (await api.post('/v1/volumes', { name: 'shown' })).body;
    for (const ref of [id, 'shown', 'local..shown']) {
      const { status, body, headers } = await api.get(`/v1/volumes/${ref}`);
      expect({ status, body }).toMatchObject({
        status: 200,
        body: { id, condition: 'ok', detail: null, users: [], mounts: [] },
      });
      expect(headers.etag).toBe('"1"');
    }
    expect(await api.get('/v1/volumes/nobody')).toMatchObject(problem(404, 'not-found'));
  });

  test('usage returns the bytes and files of a volume', async () => {
    await api.post('/v1/volumes', { name: 'used' });
    await writeFile(join(server.storeFolder, 'used', 'file'), Buffer.alloc(8192));
    const { status, body } = await api.get('/v1/volumes/used/usage');
    expect(status).toBe(200);
    expect(Number(body.bytes)).toBeGreaterThanOrEqual(8192);
    expect(body.complete).toBe(true);
    expect(await api.get('/v1/volumes/nobody/usage')).toMatchObject(problem(404, 'not-found'));
  });

  test('expand enlarges a volume', async () => {
    await api.post('/v1/volumes', { name: 'grows', bytes: '10' });
    const grown = await api.post('/v1/volumes/grows/expand', { bytes: '9007199254740993' });
    expect(grown).toMatchObject({ status: 200, body: { bytes: '9007199254740993' } });
    expect(await api.post('/v1/volumes/grows/expand', { bytes: '1' })).toMatchObject(problem(400, 'out-of-range'));
    expect(await api.post('/v1/volumes/grows/expand', { bytes: 20 })).toMatchObject(problem(400, 'invalid'));
    expect(await api.post('/v1/volumes/grows/expand')).toMatchObject(problem(400, 'invalid'));
  });

  test('rename changes the name of a volume', async () => {
    await api.post('/v1/volumes', { name: 'old' });
    await api.post('/v1/volumes', { name: 'other' });
    expect(await api.post('/v1/volumes/old/rename', { name: 'new' })).toMatchObject({
      status: 200,
      body: { name: 'new', revision: 2 },
    });
    expect(await api.post('/v1/volumes/new/rename', { name: 'other' })).toMatchObject(problem(409, 'exists'));
    expect(await api.post('/v1/volumes/new/rename', { name: 'x.meta' })).toMatchObject(problem(400, 'invalid'));
  });

  test('PATCH merges labels, and null removes one', async () => {
    await api.post('/v1/volumes', { name: 'tagged', labels: { a: '1', b: '2' } });
    expect(await api.patch('/v1/volumes/tagged', { labels: { b: null, c: '3' } })).toMatchObject({
      status: 200,
      body: { labels: { a: '1', c: '3' } },
    });
    expect(await api.patch('/v1/volumes/tagged', { labels: { 'not a key': '' } })).toMatchObject(
      problem(400, 'invalid'),
    );
  });

  test('delete returns the outcome', async () => {
    await api.post('/v1/volumes', { name: 'gone' });
    expect(await api.delete('/v1/volumes/gone')).toMatchObject({
      status: 200,
      body: { outcome: 'deleted', expiresAt: null },
    });
    expect(existsSync(join(server.storeFolder, 'gone'))).toBe(false);
    expect(await api.delete('/v1/volumes/gone')).toMatchObject(problem(404, 'not-found'));
  });

  test('delete accepts an empty JSON body, which many clients send', async () => {
    await api.post('/v1/volumes', { name: 'gone' });
    const headers = { 'content-type': 'application/json' };
    expect((await api.call('DELETE', '/v1/volumes/gone', { raw: '', headers })).status).toBe(200);
  });
});

describe('preconditions', () => {
  test.each([
    ['PATCH', '', { labels: { x: '1' } }],
    ['POST', '/expand', { bytes: '99' }],
    ['POST', '/rename', { name: 'renamed' }],
    ['DELETE', '', undefined],
  ])('%s %s only at the revision that was read', async (method, path, body) => {
    const { id } = (await api.post('/v1/volumes', { name: `cond-${method}${path.slice(1)}` })).body;
    const send = (tag: string) => api.call(method, `/v1/volumes/${id}${path}`, { body, headers: { 'if-match': tag } });
    expect(await send('"7"')).toMatchObject({ ...problem(412, 'stale') });
    for (const tag of ['7', 'W/"1"', '"x"', '"1", "2"', '""']) {
      expect(await send(tag)).toMatchObject(problem(400, 'invalid'));
    }
    expect((await api.get(`/v1/volumes/${id}`)).body.revision).toBe(1);
    expect((await send('"1"')).status).toBe(200);
  });

  test('of two writers that read the same revision, the second is refused', async () => {
    const { id } = (await api.post('/v1/volumes', { name: 'contested' })).body;
    const write = (value: string) =>
      api.patch(`/v1/volumes/${id}`, { labels: { value } }, { 'if-match': '"1"' }).then((answer) => answer.status);
    expect((await Promise.all([write('one'), write('two')])).sort()).toEqual([200, 412]);
  });

  test('If-Match: * matches every revision', async () => {
    const { id } = (await api.post('/v1/volumes', { name: 'starred' })).body;
    expect((await api.delete(`/v1/volumes/${id}`, { 'if-match': '*' })).status).toBe(200);
  });
});

describe('stores', () => {
  test('a store can be added, shown, made the default, checked and removed', async () => {
    const path = join(server.folder, 'extra');
    await mkdir(path);
    const added = await api.post('/v1/stores', { name: 'extra', uri: `local://${path}?onDelete=archive&retention=3d` });
    expect(added).toMatchObject({
      status: 201,
      headers: { location: '/v1/stores/extra' },
      body: { name: 'extra', kind: 'local', origin: 'api', state: 'open', onDelete: 'archive', retention: '3d' },
    });
    // Other tests write to the same disk meanwhile.
    const fresh = { freeBytes: expect.stringMatching(/^\d+$/) };
    expect((await api.get('/v1/stores/extra')).body).toEqual({ ...added.body, ...fresh });
    expect((await api.get('/v1/stores')).body.items.map((one: { name: string }) => one.name)).toEqual([
      'local',
      'extra',
    ]);
    expect(await api.post('/v1/stores/extra/default')).toMatchObject({ status: 200, body: { default: true } });
    expect((await api.get('/v1/status')).body.defaultStore).toBe('extra');
    await api.post('/v1/stores/local/default');
    const check = await api.post('/v1/stores/extra/check');
    expect(check).toMatchObject({ status: 200, body: { store: 'extra', ok: true } });
    await mkdir(join(path, 'stray'));
    expect((await api.get('/v1/stores/extra/orphans')).body.items).toMatchObject([{ name: 'stray', store: 'extra' }]);
    expect((await api.delete('/v1/stores/extra')).status).toBe(204);
    expect(await api.get('/v1/stores/extra')).toMatchObject(problem(404, 'not-found'));
  });

  test('invalid requests about stores are refused', async () => {
    expect(await api.post('/v1/stores', { name: 'x', uri: 'ftp://x' })).toMatchObject(problem(400, 'invalid'));
    expect(await api.post('/v1/stores', { name: 'x', uri: 'local:///nowhere/at/all' })).toMatchObject(
      problem(400, 'invalid'),
    );
    expect(await api.post('/v1/stores', { name: 'local', uri: 'local:///tmp' })).toMatchObject(problem(409, 'exists'));
    expect(await api.delete('/v1/stores/local')).toMatchObject(problem(403, 'denied'));
    expect(await api.post('/v1/stores/nope/default')).toMatchObject(problem(404, 'not-found'));
  });

  test('adopt works with and without a body', async () => {
    await mkdir(join(server.storeFolder, 'existing'));
    expect(await api.post('/v1/stores/local/adopt', { dryRun: true })).toMatchObject({
      status: 200,
      body: { adopted: [{ name: 'existing', id: null, how: 'data' }], skipped: [] },
    });
    expect((await api.post('/v1/stores/local/adopt', { directories: false })).body.adopted).toEqual([]);
    expect((await api.post('/v1/stores/local/adopt')).body.adopted).toMatchObject([{ name: 'existing' }]);
    expect((await api.get('/v1/volumes/existing')).status).toBe(200);
  });
});

describe('the trash', () => {
  test('deleted volumes can be listed, restored under another name, and purged', async () => {
    const path = join(server.folder, 'bin');
    await mkdir(path);
    await api.post('/v1/stores', { name: 'bin', uri: `local://${path}?onDelete=archive` });
    const { id } = (await api.post('/v1/volumes', { name: 'a', store: 'bin' })).body;
    const deleted = await api.delete(`/v1/volumes/${id}`);
    expect(deleted.body).toMatchObject({ outcome: 'archived', expiresAt: expect.stringMatching(/Z$/) });
    expect((await api.get('/v1/trash?store=bin')).body.items).toMatchObject([{ id, name: 'a' }]);
    expect((await api.get('/v1/trash')).body.items).toHaveLength(1);
    expect(await api.get('/v1/trash?store=nope')).toMatchObject(problem(404, 'not-found'));
    expect(await api.post(`/v1/trash/${id}/restore`, { name: 'b' })).toMatchObject({
      status: 200,
      body: { id, name: 'b' },
    });
    await api.delete(`/v1/volumes/${id}`);
    expect((await api.delete(`/v1/trash/${id}`)).status).toBe(204);
    expect(await api.delete(`/v1/trash/${id}`)).toMatchObject(problem(404, 'not-found'));
    expect(await api.post(`/v1/trash/${id}/restore`)).toMatchObject(problem(404, 'not-found'));
  });
});

describe('the server', () => {
  test('status and doctor describe the server', async () => {
    expect((await api.get('/v1/status')).body).toMatchObject({ ready: true, pid: process.pid, config: null });
    const { items } = (await api.get('/v1/doctor')).body;
    expect(items.length).toBeGreaterThan(3);
  });

  test('operations are listed newest first, up to the limit', async () => {
    await api.post('/v1/volumes', { name: 'one-more' });
    const { items } = (await api.get('/v1/operations?limit=1')).body;
    expect(items).toMatchObject([{ kind: 'volume.create', subject: 'local/one-more', state: 'done', progress: null }]);
    expect((await api.get(`/v1/operations/${items[0].id}`)).body).toMatchObject(items[0]);
    expect(await api.get('/v1/operations/op1-nope')).toMatchObject(problem(404, 'not-found'));
    for (const limit of ['0', '1001', 'x', '-1', '1.5', '']) {
      expect(await api.get(`/v1/operations?limit=${limit}`)).toMatchObject(problem(400, 'invalid'));
    }
  });

  test('tokens can be created, listed and revoked', async () => {
    const made = await api.post('/v1/tokens', { name: 'ci', role: 'user', stores: ['local'], expiresIn: '1d' });
    expect(made).toMatchObject({
      status: 201,
      body: { name: 'ci', role: 'user', stores: ['local'], secret: expect.stringMatching(/^stowage_/) },
    });
    expect(await api.post('/v1/tokens', { name: 'x', role: 'king' })).toMatchObject(problem(400, 'invalid'));
    expect(await api.post('/v1/tokens', { name: 'x', role: 'user', expiresIn: '0s' })).toMatchObject(
      problem(400, 'invalid'),
    );
    for (const expiresIn of ['99999w', '52143w', '999999999w', '458438511d', '-1d']) {
      expect(await api.post('/v1/tokens', { name: 'x', role: 'user', expiresIn })).toMatchObject(
        problem(400, 'invalid'),
      );
    }
    expect((await api.get('/v1/tokens')).status).toBe(200);
    expect(await api.post('/v1/tokens', { name: 'x', role: 'user', stores: ['nope'] })).toMatchObject(
      problem(404, 'not-found'),
    );
    expect((await api.delete(`/v1/tokens/${made.body.id}`)).status).toBe(204);
  });

  test('HEAD is GET without a body', async () => {
    for (const path of ['/v1/volumes', '/healthz', '/openapi.json']) {
      const { status, text } = await api.call('HEAD', path);
      expect({ status, text }).toEqual({ status: 200, text: '' });
    }
  });
});

describe.skipIf(lacks('mount'))('mounts', () => {
  test('a volume can be mounted, listed and unmounted', async () => {
    const target = `${server.folder}-mount`;
    const { id } = (await api.post('/v1/volumes', { name: 'mounted' })).body;
    expect(await api.post('/v1/volumes/mounted/mount', { target, readOnly: true })).toMatchObject({
      status: 200,
      body: { volume: id, name: 'local/mounted', target, readOnly: true, mounted: true },
    });
    expect((await api.get('/v1/mounts')).body.items).toMatchObject([{ volume: id, target }]);
    expect((await api.get(`/v1/volumes/${id}`)).body.users).toMatchObject([{ kind: 'path', name: target }]);
    expect(await api.delete(`/v1/volumes/${id}`)).toMatchObject(problem(409, 'in-use'));
    expect((await api.post('/v1/volumes/mounted/unmount', { target })).status).toBe(204);
    // Idempotent.
    expect((await api.post('/v1/volumes/mounted/unmount', { target })).status).toBe(204);
    expect(existsSync(target)).toBe(false);
  });

  test.each([
    ['relative/path'],
    ['/'],
    ['/etc'],
    ['/proc/x'],
    ['/dev/x'],
    ['/tmp/with\u0000nul'],
    ['STATE'],
    ['STORE'],
  ])('the target %j is refused', async (given) => {
    const target = given.replace('STATE', `${server.folder}/x`).replace('STORE', `${server.storeFolder}/mounted/x`);
    const { status, body } = await api.post('/v1/volumes/mounted/mount', { target });
    expect([400, 403, 409]).toContain(status);
    expect(body.action).not.toBe('');
    expect((await api.get('/v1/mounts')).body.items).toEqual([]);
  });
});
