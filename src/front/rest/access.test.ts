import { mkdir, mkdtempDisposable, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { aCall } from '#testing/core-calls.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { allRoutes } from '#testing/routes.ts';
import { type Answer, type Api, firstToken, startServer, type TestServer } from '#testing/server.ts';

type Role = 'viewer' | 'user' | 'admin';

let server: TestServer;
const clock = createFakeClock();
const clients = new Map<string, Api>();

beforeAll(async () => {
  server = await startServer({ clock, kinds: [createLocalStoreKind(clock)] });
  for (const name of ['one', 'two']) {
    await mkdir(join(server.folder, name));
    await server.admin.post('/v1/stores', { name, uri: `local://${join(server.folder, name)}?onDelete=archive` });
    await server.admin.post('/v1/volumes', { name: 'a', store: name });
    await server.admin.post('/v1/volumes', { name: `only-${name}`, store: name });
    await server.admin.post('/v1/volumes', { name: 'thrown', store: name });
    await server.admin.delete(`/v1/volumes/${name}..thrown`);
  }
  clients.set('none', server.remote());
  clients.set('wrong', server.remote('stowage_no-such-token'));
  for (const role of ['viewer', 'user', 'admin'] as const) clients.set(role, await server.as(role));
});
afterAll(() => server[Symbol.asyncDispose]());

const client = (name: string): Api => {
  const found = clients.get(name);
  if (found === undefined) throw new Error(`no client ${name}`);
  return found;
};

/** Every route, the lowest role that it needs, and a request that does no harm if it is allowed. */
const routes: readonly { method: string; path: string; role: Role; body?: unknown }[] = [
  { method: 'GET', path: '/v1/volumes', role: 'viewer' },
  { method: 'POST', path: '/v1/volumes', role: 'user', body: { name: 'x', store: 'nope' } },
  { method: 'GET', path: '/v1/volumes/{volume}', role: 'viewer' },
  { method: 'GET', path: '/v1/volumes/{volume}/usage', role: 'viewer' },
  { method: 'POST', path: '/v1/volumes/{volume}/expand', role: 'user', body: { bytes: '1' } },
  { method: 'POST', path: '/v1/volumes/{volume}/rename', role: 'user', body: { name: 'x' } },
  { method: 'DELETE', path: '/v1/volumes/{volume}/empty', role: 'user' },
  { method: 'PATCH', path: '/v1/volumes/{volume}', role: 'user', body: { labels: {} } },
  { method: 'DELETE', path: '/v1/volumes/{volume}', role: 'user' },
  { method: 'DELETE', path: '/v1/volumes/{volume}/uses/{host}', role: 'admin' },
  { method: 'POST', path: '/v1/volumes/{volume}/mount', role: 'admin', body: { target: '/nope' } },
  { method: 'POST', path: '/v1/volumes/{volume}/unmount', role: 'admin', body: { target: '/nope' } },
  { method: 'GET', path: '/v1/stores', role: 'viewer' },
  { method: 'POST', path: '/v1/stores', role: 'admin', body: { name: 'x', uri: 'nope' } },
  { method: 'GET', path: '/v1/stores/{store}', role: 'viewer' },
  { method: 'DELETE', path: '/v1/stores/{store}', role: 'admin' },
  { method: 'POST', path: '/v1/stores/{store}/default', role: 'admin' },
  { method: 'POST', path: '/v1/stores/{store}/check', role: 'user' },
  { method: 'POST', path: '/v1/stores/{store}/adopt', role: 'admin' },
  { method: 'GET', path: '/v1/stores/{store}/orphans', role: 'viewer' },
  { method: 'GET', path: '/v1/trash', role: 'viewer' },
  { method: 'POST', path: '/v1/trash/{volume}/restore', role: 'user' },
  { method: 'DELETE', path: '/v1/trash/{volume}', role: 'admin' },
  { method: 'GET', path: '/v1/status', role: 'viewer' },
  { method: 'GET', path: '/v1/doctor', role: 'admin' },
  { method: 'GET', path: '/v1/client', role: 'admin' },
  { method: 'POST', path: '/v1/client/upgrade', role: 'admin' },
  { method: 'GET', path: '/v1/mounts', role: 'viewer' },
  { method: 'GET', path: '/v1/troubles', role: 'viewer' },
  { method: 'GET', path: '/v1/operations', role: 'viewer' },
  { method: 'GET', path: '/v1/operations/{id}', role: 'viewer' },
  { method: 'POST', path: '/v1/operations/{id}/cancel', role: 'user' },
  { method: 'GET', path: '/v1/tokens', role: 'admin' },
  { method: 'POST', path: '/v1/tokens', role: 'admin', body: { name: 'x', role: 'viewer', stores: ['nope'] } },
  { method: 'DELETE', path: '/v1/tokens/{id}', role: 'admin' },
  { method: 'GET', path: '/metrics', role: 'viewer' },
];
const ranks: readonly string[] = ['viewer', 'user', 'admin'];

const send = (api: Api, { method, path, body }: (typeof routes)[number]): Promise<Answer> =>
  api.call(method, path.replaceAll(/\{\w+\}/g, 'nope'), { body });

test('the table below has every route of the document', async () => {
  const { paths } = (await server.admin.get('/openapi.json')).body;
  const documented = Object.entries<object>(paths).flatMap(([path, item]) =>
    Object.keys(item).map((method) => `${method.toUpperCase()} ${path}`),
  );
  const open = ['GET /healthz', 'GET /readyz', 'GET /openapi.json', 'GET /v1/events'];
  expect(documented.sort()).toEqual([...routes.map(({ method, path }) => `${method} ${path}`), ...open].sort());
});

describe.each(routes)('$method $path', (route) => {
  const needed = route.role;

  test.each(['none', 'wrong'])('with %s token is refused, with a hint how to send one', async (who) => {
    const answer = await send(client(who), route);
    expect(answer).toMatchObject({ status: 401, body: { code: 'unauthenticated' } });
    expect(answer.headers['www-authenticate']).toBe('Bearer realm="stowage"');
    expect(answer.headers['content-type']).toContain('application/problem+json');
    for (const way of ["'Authorization: Bearer TOKEN'", '--token-file', 'STOWAGE_TOKEN'])
      expect(answer.body.action).toContain(way);
  });

  test.each(ranks)('as %s', async (role) => {
    const { status, body } = await send(client(role), route);
    if (ranks.indexOf(role) >= ranks.indexOf(needed)) {
      expect([200, 400, 404]).toContain(status);
    } else {
      expect({ status, body }).toMatchObject({
        status: 403,
        body: {
          code: 'denied',
          detail: `this request requires the role '${needed}'; the token has the role '${role}'`,
          action: `Ask the administrator for a token with the role '${needed}': stowage token create NAME --role ${needed}`,
        },
      });
    }
  });
});

describe('tokens', () => {
  test('the first token is in the state folder, readable by the owner only, and stays the same', async () => {
    const token = await firstToken(server.folder);
    expect((await server.remote(token).get('/v1/tokens')).status).toBe(200);
    expect((await stat(join(server.folder, 'token'))).mode & 0o777).toBe(0o600);
  });

  test('an expired token is refused', async () => {
    const { body } = await server.admin.post('/v1/tokens', { name: 't', role: 'viewer', expiresIn: '1h' });
    const api = server.remote(body.secret);
    clock.advance(3_599_999);
    expect((await api.get('/v1/volumes')).status).toBe(200);
    clock.advance(1);
    expect(await api.get('/v1/volumes')).toMatchObject({
      status: 401,
      body: { reason: 'token-refused', detail: 'the token is unknown, revoked or expired' },
    });
  });

  test('a revoked token is refused at once', async () => {
    const { body } = await server.admin.post('/v1/tokens', { name: 't', role: 'viewer' });
    const api = server.remote(body.secret);
    expect((await api.get('/v1/volumes')).status).toBe(200);
    expect((await server.admin.delete(`/v1/tokens/${body.id}`)).status).toBe(204);
    expect((await api.get('/v1/volumes')).status).toBe(401);
    expect(await server.admin.delete(`/v1/tokens/${body.id}`)).toMatchObject({
      status: 404,
      body: { reason: 'token-unknown' },
    });
  });

  test('a list of tokens contains no secret', async () => {
    const { body } = await server.admin.post('/v1/tokens', { name: 'hidden', role: 'viewer' });
    const { text } = await server.admin.get('/v1/tokens');
    expect(text).toContain('hidden');
    expect(text).not.toContain(body.secret);
    expect(text).not.toContain('hash');
  });

  test.each([['Basic abc'], ['Bearer'], ['Bearer  two-spaces'], [`Bearer ${'x'.repeat(300)}`], ['bearer a b']])(
    'the header %j is refused',
    async (authorization) => {
      expect((await server.remote().get('/v1/volumes', { authorization })).status).toBe(401);
    },
  );
});

describe('a token for one store', () => {
  let api: Api;
  let user: Api;
  beforeAll(async () => {
    api = await server.as('admin', 'one');
    user = await server.as('user', 'one');
  });
  const outOfScope = { status: 403, body: { code: 'denied', reason: 'store-out-of-scope' } };

  test('lists only the volumes of that store', async () => {
    const names = async (path: string): Promise<string[]> =>
      (await api.get(path)).body.items.map((item: { store?: string; name: string }) => item.store ?? item.name);
    expect(await names('/v1/stores')).toEqual(['one']);
    expect(new Set(await names('/v1/volumes'))).toEqual(new Set(['one']));
    expect(new Set(await names('/v1/trash'))).toEqual(new Set(['one']));
    expect(new Set(await names('/v1/operations'))).toEqual(new Set(['one']));
  });

  test('finds the volume of that store by a bare name that other stores have too', async () => {
    expect((await user.get('/v1/volumes/a')).body).toMatchObject({ store: 'one', name: 'a' });
    expect(await user.get('/v1/volumes/only-two')).toMatchObject({ status: 404 });
  });

  const inTwo = (path: string): string =>
    path.replace('{store}', 'two').replace('{volume}', 'two..a').replace('{host}', 'nope');
  const wanted: Readonly<Record<string, object>> = {
    'POST /v1/volumes': { name: 'x', store: 'two' },
    'PATCH /v1/volumes/{volume}': { labels: { x: '1' } },
    'POST /v1/volumes/{volume}/expand': { bytes: '10' },
    'POST /v1/volumes/{volume}/rename': { name: 'b' },
  };
  const ofStores = allRoutes.filter(({ scope }) => scope === 'store');
  const hasOtherId = ({ path }: { readonly path: string }): boolean => /^\/v1\/(trash|operations)\//.test(path);

  test.each([
    ...ofStores
      .filter((route) => !hasOtherId(route))
      .map(({ method, path, role }) => [method, inTwo(path), role, wanted[`${method} ${path}`]] as const),
    ['GET', '/v1/volumes?store=two', 'viewer', undefined] as const,
    ['GET', '/v1/stores/unknown', 'viewer', undefined] as const,
    ['GET', '/v1/trash?store=two', 'viewer', undefined] as const,
  ])('%s %s is out of its scope', async (method, path, role, body) => {
    const asked = role === 'admin' ? api : user;
    expect(await asked.call(method, path, { body })).toMatchObject(outOfScope);
  });

  test.each([
    ['GET', '/v1/volumes/STORE..NAME'],
    ['GET', '/v1/volumes/STORE..NAME/usage'],
    ['DELETE', '/v1/volumes/STORE..NAME'],
    ['PATCH', '/v1/volumes/STORE..NAME', { labels: { x: '1' } }],
    ['GET', '/v1/stores/STORE'],
  ])('%s %s does not reveal what exists in other stores', async (method, path, body?: unknown) => {
    const ask = async (store: string, name: string): Promise<unknown> => {
      const answer = await api.call(method, path.replace('STORE', store).replace('NAME', name), { body });
      const { requestId: _, ...said } = answer.body;
      return { ...said, detail: said.detail.replace(store, 'STORE') };
    };
    const there = await ask('two', 'only-two');
    expect(there).toMatchObject({ ...outOfScope.body, action: expect.stringContaining('It permits: one.') });
    expect(await ask('two', 'nobody')).toEqual(there);
    expect(await ask('nope', 'only-two')).toEqual(there);
    expect(await ask('two', 'not%20a%20name')).toEqual(there);
  });

  test.each([
    ['GET', '/v1/volumes/ID'],
    ['GET', '/v1/volumes/ID/usage'],
    ['DELETE', '/v1/volumes/ID'],
  ])(
    '%s %s answers the same for a volume of another store as for one that does not exist',
    async (method, path, body?: unknown) => {
      const { id } = (await server.admin.get('/v1/volumes/two..only-two')).body;
      const ask = async (volume: string): Promise<unknown> => {
        const answer = await api.call(method, path.replace('ID', volume), { body });
        const { requestId: _, ...said } = answer.body;
        return { ...said, detail: said.detail.replace(volume, 'ID') };
      };
      const never = await ask('sv1-00000000-0000-4000-8000-000000000000');
      expect(never).toMatchObject({ status: 404, reason: 'volume-unknown' });
      expect(await ask(id)).toEqual(never);
    },
  );

  test('does not create a volume in a default store outside its scope, and does not learn its name', async () => {
    const answer = await user.post('/v1/volumes', { name: 'x' });
    expect(answer).toMatchObject(outOfScope);
    expect(answer.body.action).toContain('The token permits: one.');
    expect(answer.text).not.toContain('local');
  });

  test('learns nothing about other stores after its store was removed', async () => {
    await mkdir(join(server.folder, 'brief'));
    await server.admin.post('/v1/stores', { name: 'brief', uri: `local://${join(server.folder, 'brief')}` });
    const late = await server.as('admin', 'brief');
    await server.admin.delete('/v1/stores/brief');
    for (const [method, path, body] of [
      ['GET', '/v1/stores/brief'],
      ['GET', '/v1/volumes/brief..a'],
      ['GET', '/v1/volumes?store=brief'],
      ['GET', '/v1/trash?store=brief'],
      ['POST', '/v1/volumes', { name: 'x', store: 'brief' }],
      ['POST', '/v1/stores/brief/check'],
      ['POST', '/v1/stores/brief/adopt'],
    ] as const) {
      const answer = await late.call(method, path, { body });
      expect(answer, path).toMatchObject({ status: 404, body: { reason: 'store-unknown' } });
      expect(answer.text, path).not.toMatch(/\b(local|two)\b/);
    }
  });

  test('sees the metrics of its store and of the process only', async () => {
    const { text } = await user.get('/metrics');
    expect(new Set(text.match(/store="\w+"/g))).toEqual(new Set(['store="one"']));
    expect(text).toMatch(/^stowage_volumes\{store="one"\} \d+$/m);
    expect(text).toMatch(/^stowage_volume_bytes\{store="one"\} \d+$/m);
    expect(text).toMatch(/^stowage_store_open\{store="one"\} 1$/m);
    expect(text).toMatch(/^stowage_operations_running \d+$/m);
    expect(text).toMatch(/^process_resident_memory_bytes \d+$/m);
    const all = (await client('viewer').get('/metrics')).text;
    expect(new Set(all.match(/store="\w+"/g))).toEqual(new Set(['store="local"', 'store="one"', 'store="two"']));
  });

  test('sees a status of its store, without details of the machine', async () => {
    const whole = (await client('viewer').get('/v1/status')).body;
    expect(whole).toMatchObject({ pid: process.pid, state: server.folder, stores: 3, defaultStore: 'local' });
    expect(whole.listen[0]).toBe(`unix:${join(server.folder, 's')}`);
    const { items } = (await user.get('/v1/volumes')).body;
    const answer = await user.get('/v1/status');
    expect(answer.body).toMatchObject({
      version: whole.version,
      ready: true,
      stores: 1,
      volumes: items.length,
      mounts: 0,
      operations: 0,
      pid: null,
      state: null,
      config: null,
      defaultStore: null,
      listen: [`http://127.0.0.1:${server.port}`],
    });
    expect(answer.text).not.toContain(server.folder);
    await server.admin.post('/v1/stores/one/default');
    expect((await user.get('/v1/status')).body.defaultStore).toBe('one');
    await server.admin.post('/v1/stores/local/default');
  });

  test('gets its operations, however many other stores have', async () => {
    for (let n = 0; n < 3; n++) await server.admin.patch('/v1/volumes/two..a', { labels: { n: `${n}` } });
    const { items, next } = (await user.get('/v1/operations?limit=1')).body;
    expect(items).toMatchObject([{ store: 'one' }]);
    const second = (await user.get(`/v1/operations?limit=1&after=${next}`)).body;
    expect(second.items).toMatchObject([{ store: 'one' }]);
    expect(second.items[0].id).not.toBe(items[0].id);
  });

  test.each([
    ['POST', '/v1/stores', { name: 'x', uri: 'local:///x' }],
    ['DELETE', '/v1/stores/one'],
    ['POST', '/v1/stores/one/default'],
    ['POST', '/v1/stores/two/adopt'],
    ['GET', '/v1/client'],
    ['POST', '/v1/client/upgrade'],
    ['GET', '/v1/doctor'],
    ['GET', '/v1/tokens'],
    ['POST', '/v1/tokens', { name: 'x', role: 'admin' }],
    ['DELETE', '/v1/tokens/tk1-0'],
    // Otherwise the administrator of one store would be root on the machine.
    ['POST', '/v1/volumes/one..a/mount', { target: '/nope' }],
    ['POST', '/v1/volumes/one..a/unmount', { target: '/nope' }],
    ['POST', '/v1/stores/one/check', { from: 'container:web' }],
  ])('%s %s concerns all stores, so even an administrator of one is refused', async (method, path, body?: unknown) => {
    expect(await api.call(method, path, { body })).toMatchObject(outOfScope);
  });

  test('gets an error that names the required token if the request acts on the machine', async () => {
    const action = 'Ask the administrator for a token that is not limited to stores.';
    expect((await api.post('/v1/volumes/one..a/mount', { target: '/nope' })).body).toMatchObject({
      detail: 'the token is limited to some stores, and this request acts on the machine',
      action,
    });
    expect((await api.get('/v1/tokens')).body).toMatchObject({
      detail: 'the token is limited to some stores, and this request concerns all stores',
      action,
    });
  });

  test('sees no operations of other stores, and cannot restore from their trash', async () => {
    const { items } = (await server.admin.get('/v1/operations')).body;
    const other = items.find((one: { store: string }) => one.store === 'two');
    const [thrown] = (await server.admin.get('/v1/trash?store=two')).body.items;
    const asked = ofStores.filter(hasOtherId);
    expect(asked).toHaveLength(4);
    for (const { method, path } of asked) {
      const answer = await api.call(method, path.replace('{id}', other.id).replace('{volume}', thrown.id));
      expect(answer.status, `${method} ${path}`).toBe(404);
    }
    expect((await server.admin.get('/v1/trash?store=two')).body.items).toHaveLength(1);
  });

  test('can check its own store', async () => {
    expect(await user.post('/v1/stores/one/check')).toMatchObject({ status: 200, body: { ok: true } });
    expect(await user.post('/v1/stores/one/check', { from: 'container:web' })).toMatchObject({
      status: 403,
      body: {
        reason: 'role-insufficient',
        detail: "this request requires the role 'admin'; the token has the role 'user'",
      },
    });
  });

  test('can change volumes of its own store', async () => {
    expect((await user.post('/v1/volumes', { name: 'mine', store: 'one' })).status).toBe(201);
    expect((await user.delete('/v1/volumes/one..mine')).status).toBe(200);
  });
});

describe('cancelling an operation needs the same role as starting it', () => {
  const beginners: Readonly<Record<string, Role>> = {
    'volume.create': 'user',
    'volume.expand': 'user',
    'volume.rename': 'user',
    'volume.label': 'user',
    'volume.enforce': 'user',
    'volume.delete': 'user',
    'volume.restore': 'user',
    'volume.mount': 'admin',
    'volume.unmount': 'admin',
    'trash.purge': 'admin',
    'store.adopt': 'admin',
  };

  test('the table has all kinds of operation that a crash can interrupt', () => {
    const { volumes, deletions, adoptions } = server.core;
    const steps = [volumes, deletions, adoptions].flatMap((one) => Object.keys(one.steps));
    expect([...steps, 'volume.mount', 'volume.unmount'].sort()).toEqual(Object.keys(beginners).sort());
  });

  test.each([...Object.entries(beginners), ['of.later', 'admin'] as const])('%s: %s', async (kind, needed) => {
    const { promise: started, resolve } = Promise.withResolvers<string>();
    const call = aCall({ onOperation: ({ id }) => resolve(id) });
    const work = server.core.operations.run({ kind, store: 'one', subject: 'x', params: {} }, call, ({ signal }) => {
      const { promise, reject } = Promise.withResolvers<never>();
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
      return promise;
    });
    const ended = expect(work).rejects.toMatchObject({ code: 'canceled' });
    const cancel = (who: string): Promise<Answer> =>
      started.then((id) => client(who).post(`/v1/operations/${id}/cancel`));
    if (needed === 'admin') {
      expect(await cancel('user')).toMatchObject({ status: 403, body: { reason: 'role-insufficient' } });
      expect(server.core.operations.running).toBe(1);
    }
    expect((await cancel(needed)).status).toBe(200);
    await ended;
  });
});

describe.skipIf(lacks('mount'))('a path where a volume of another store is mounted', () => {
  test('is reported as taken, without the name of the volume', async () => {
    const target = `${server.folder}-mount`;
    const api = await server.as('admin', 'one');
    expect((await server.admin.post('/v1/volumes/two..a/mount', { target })).status).toBe(200);
    for (const verb of ['mount', 'unmount']) {
      const answer = await api.post(`/v1/volumes/one..a/${verb}`, { target });
      expect(answer.status).toBe(403);
      expect(answer.text).not.toContain('two');
    }
    expect((await api.get('/v1/status')).body.mounts).toBe(0);
    expect((await server.admin.get('/v1/status')).body.mounts).toBe(1);
    expect((await server.admin.post('/v1/volumes/two..a/unmount', { target })).status).toBe(204);
  });
});

test('only administrators set ownLabels, and only with their reserved prefix', async () => {
  const own = { 'stowage.dev/claim-uid': 'u-1' };
  const body = { name: 'noted', store: 'one', ownLabels: own };
  expect((await client('user').post('/v1/volumes', body)).status).toBe(403);
  const wrong = await client('admin').post('/v1/volumes', { ...body, ownLabels: { 'claim-uid': 'u-1' } });
  expect(wrong.status).toBe(400);
  const made = await client('admin').post('/v1/volumes', { ...body, labels: { team: 'red' } });
  expect(made).toMatchObject({ status: 201, body: { labels: { ...own, team: 'red' } } });
  const [path, more] = ['/v1/volumes/one..noted', { 'stowage.dev/retained': 'true' }];
  expect((await client('user').patch(path, { ownLabels: more })).status).toBe(403);
  const changed = await client('admin').patch(path, { ownLabels: more });
  expect(changed).toMatchObject({ status: 200, body: { labels: { ...own, ...more, team: 'red' } } });
  expect(
    (await client('user').patch(path, { labels: { 'stowage.dev/retained': null, team: null } })).body,
  ).toMatchObject({
    labels: { ...own, ...more },
  });
  const listed = await client('viewer').get('/v1/volumes?label=stowage.dev%2Fclaim-uid%3Du-1');
  expect(listed.body.items.map(({ name }: { name: string }) => name)).toEqual(['noted']);
});

describe('without a token', () => {
  test.each(['/healthz', '/readyz', '/openapi.json'])('%s answers', async (path) => {
    const { status } = await client('none').get(path);
    expect(status).toBe(200);
  });

  test('/metrics is refused', async () => {
    expect((await client('none').get('/metrics')).status).toBe(401);
    const { status, text, headers } = await client('viewer').get('/metrics');
    expect(status).toBe(200);
    expect(headers['content-type']).toContain('text/plain');
    expect(text).toMatch(/^stowage_volumes\{store="one"\} \d+$/m);
    expect(text).toMatch(/^stowage_http_requests_total\{method="GET",route="\/v1\/volumes",status="200"\} \d+$/m);
  });

  test('requests through the socket are allowed, since only its owner can open it', async () => {
    expect((await server.admin.get('/v1/tokens')).status).toBe(200);
    expect((await stat(join(server.folder, 's'))).mode & 0o777).toBe(0o600);
  });

  test('a token is ignored on the socket', async () => {
    expect((await server.admin.get('/v1/tokens', { authorization: 'Bearer nonsense' })).status).toBe(200);
  });
});

test('the problem of a store does not reveal other stores to a token for that store', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'stowage-places-'));
  await mkdir(join(folder.path, 'secret', 'inner'), { recursive: true });
  const config = join(folder.path, 'stowage.yaml');
  const at = (place: string): string => `local://${folder.path}/${place}`;
  await writeFile(
    config,
    `stores:\n  hidden: ${at('secret')}\n  same: ${at('secret')}\n  inner: ${at('secret/inner')}\n`,
  );
  await using own = await startServer({ config });
  const problems = async (api: Api): Promise<string> =>
    JSON.stringify((await api.get('/v1/stores')).body.items.map(({ problem }: { problem: unknown }) => problem));
  // Any of them may open first; the problems of the others name it.
  const open = own.core.stores.list().find(({ store }) => store !== undefined)?.config.name ?? '';
  expect(await problems(own.admin)).toContain(open);
  const others = ['hidden', 'same', 'inner'].filter((name) => name !== open);
  const seen = await problems(await own.as('viewer', ...others));
  expect(seen).toContain('cannot use its configured location');
  expect(seen).not.toContain(open);
});
