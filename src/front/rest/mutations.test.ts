import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { type GatedKind, gated } from '#testing/fakes/gated-store.ts';
import { type Answer, type Api, firstToken, startServer, type TestServer } from '#testing/server.ts';

let server: TestServer;
let api: Api;
let kind: GatedKind;

beforeEach(async () => {
  kind = gated(createLocalStoreKind());
  server = await startServer({ kinds: [kind] });
  onTestFinished(() => server[Symbol.asyncDispose]());
  api = server.remote(await firstToken(server.folder));
});

const create = (name: string, key: string, by: Api = api, more: object = {}): Promise<Answer> =>
  by.post('/v1/volumes', { name, ...more }, { 'idempotency-key': key });
const count = async (): Promise<number> => (await server.admin.get('/v1/volumes')).body.items.length;

describe('Idempotency-Key', () => {
  test('a repeat gets the first answer with its headers, even if the volume changed since', async () => {
    const first = await create('a', 'k1');
    await api.patch('/v1/volumes/a', { labels: { later: 'yes' } });
    const again = await create('a', 'k1');
    expect(again.status).toBe(201);
    expect(again.text).toBe(first.text);
    expect(again.headers.etag).toBe(first.headers.etag);
    expect(again.headers.location).toBe(first.headers.location);
  });

  test('two concurrent requests run the work once, and both get the answer', async () => {
    const gate = kind.close('create');
    const both = [create('a', 'k1'), create('a', 'k1')];
    await gate.reached;
    gate.open();
    const [one, two] = await Promise.all(both);
    expect(one?.status).toBe(201);
    expect(two?.text).toBe(one?.text);
    expect(server.core.operations.page({ limit: 10 }).items).toHaveLength(1);
  });

  test('a key that is reused for another request is a conflict, also while the first still runs', async () => {
    const gate = kind.close('create');
    const first = create('a', 'k1');
    await gate.reached;
    const refused = {
      status: 409,
      body: {
        code: 'conflict',
        reason: 'idempotency-key-reused',
        detail: 'this Idempotency-Key was used for another request',
      },
    };
    expect(await create('b', 'k1')).toMatchObject(refused);
    gate.open();
    await first;
    expect(await create('b', 'k1')).toMatchObject(refused);
    expect(await api.delete('/v1/volumes/a', { 'idempotency-key': 'k1' })).toMatchObject(refused);
    expect(await count()).toBe(1);
  });

  test('the work is retried after a failure', async () => {
    await create('a', 'other');
    expect((await create('a', 'k1')).status).toBe(409);
    await api.delete('/v1/volumes/a');
    expect((await create('a', 'k1')).status).toBe(201);
    expect((await create('a', 'k1')).status).toBe(201);
  });

  test('with Prefer: answer-forgotten no answer is kept, and a repeat finds the volume', async () => {
    const make = (name: string, key = 'k1') =>
      api.post('/v1/volumes', { name }, { 'idempotency-key': key, prefer: 'answer-forgotten' });
    const gate = kind.close('create');
    const both = [make('a'), make('a')];
    await gate.reached;
    gate.open();
    const [one, two] = await Promise.all(both);
    expect([one?.status, two?.status]).toEqual([201, 201]);
    expect((await make('a')).body.id).toBe(one?.body.id);
    expect([two?.body.id, await count()]).toEqual([one?.body.id, 1]);
    expect(await make('a', 'k2')).toMatchObject({ status: 409, body: { reason: 'volume-exists' } });
    await api.delete('/v1/volumes/a');
    // A kept answer would be returned now.
    const second = await make('a');
    expect(second.status).toBe(201);
    expect(second.body.id).not.toBe(one?.body.id);
  });

  test('a repeated delete gets the first answer', async () => {
    await create('a', 'k1');
    const remove = () => api.delete('/v1/volumes/a', { 'idempotency-key': 'k2' });
    expect(await remove()).toMatchObject({ status: 200, body: { outcome: 'deleted' } });
    expect(await remove()).toMatchObject({ status: 200, body: { outcome: 'deleted' } });
  });

  test('keys are scoped to their sender', async () => {
    const user = await server.as('user');
    await create('a', 'k1');
    const other = await create('b', 'k1', user);
    expect(other).toMatchObject({ status: 201, body: { name: 'b' } });
  });

  test("the same request with the same key from another sender does not get the first sender's volume", async () => {
    const { body } = await server.admin.post('/v1/tokens', { name: 'other', role: 'user' });
    expect((await create('a', 'k1')).status).toBe(201);
    expect(await create('a', 'k1', server.remote(body.secret))).toMatchObject({
      status: 409,
      body: { reason: 'volume-exists' },
    });
    await create('b', 'k2', server.remote(body.secret));
    const { requestId } = JSON.parse(await readFile(join(server.storeFolder, 'b.meta'), 'utf8'));
    expect(requestId).toBe(`${body.id} k2`);
  });

  test('a key with another If-Match is another request', async () => {
    await create('a', 'k1');
    const remove = (revision: string) =>
      api.delete('/v1/volumes/a', { 'idempotency-key': 'k2', 'if-match': `"${revision}"` });
    expect((await remove('7')).status).toBe(412);
    expect(await remove('1')).toMatchObject({ status: 409, body: { reason: 'idempotency-key-reused' } });
    expect(await count()).toBe(1);
  });

  test('the kept answer survives a restart, like the volume', async () => {
    const first = await create('a', 'k1', api, { bytes: '10' });
    await server.stop();
    await using next = await startServer({ folder: server.folder });
    const again = next.remote(await firstToken(server.folder));
    expect((await create('a', 'k1', again, { bytes: '10' })).text).toBe(first.text);
    expect((await create('a', 'k1', again, { bytes: '11' })).status).toBe(409);
    expect((await next.admin.get('/v1/volumes')).body.items).toHaveLength(1);
  });

  test('after a crash before the answer was kept, the repeat finds the volume', async () => {
    const first = await create('a', 'k1');
    await server.stop();
    const db = new DatabaseSync(join(server.folder, 'state.db'));
    db.exec("UPDATE answers SET status = NULL, body = ''");
    db.close();
    await using next = await startServer({ folder: server.folder });
    const again = await create('a', 'k1', next.remote(await firstToken(server.folder)));
    expect(again).toMatchObject({ status: 201, body: { id: first.body.id } });
  });

  test('the secret of a token is never kept, not even for a repeat', async () => {
    const make = (name: string) =>
      server.admin.post('/v1/tokens', { name, role: 'viewer' }, { 'idempotency-key': 'k1' });
    const { status, body } = await make('t');
    expect(status).toBe(201);
    expect((await make('other')).status).toBe(409);
    const again = await make('t');
    expect(again.status).toBe(201);
    expect(again.body.secret).not.toBe(body.secret);
    await server.stop();
    for (const file of ['state.db']) {
      const text = (await readFile(join(server.folder, file))).toString('latin1');
      expect(text).not.toContain(body.secret);
      expect(text).not.toContain(again.body.secret);
    }
  });

  describe('for a new token', () => {
    const make = (by: Api, about: object = {}) =>
      by.post('/v1/tokens', { name: 't', role: 'viewer', ...about }, { 'idempotency-key': 'k1' });
    const works = async (by: TestServer, secret: string): Promise<boolean> =>
      (await by.remote(secret).get('/v1/volumes')).status === 200;

    test('a repeat gives the same token a new secret, and the first secret ends', async () => {
      const first = await make(server.admin);
      const second = await make(server.admin);
      expect(second.body.id).toBe(first.body.id);
      expect(await works(server, first.body.secret)).toBe(false);
      expect(await works(server, second.body.secret)).toBe(true);
      const { items } = (await server.admin.get('/v1/tokens')).body;
      expect(items.filter((one: { name: string }) => one.name === 't')).toHaveLength(1);
    });

    test('the repeat also replaces the token if the server was killed before it kept the key, and no other token', async () => {
      const first = await make(server.admin, { expiresIn: '1h' });
      await server.stop();
      const db = new DatabaseSync(join(server.folder, 'state.db'));
      db.exec('DELETE FROM answers');
      db.close();
      await using next = await startServer({ folder: server.folder });
      for (const about of [{}, { expiresIn: '2h' }, { expiresIn: '1h', role: 'admin' }]) {
        expect(await make(next.admin, about)).toMatchObject({ status: 409, body: { reason: 'request-differs' } });
        next.core.records.idempotentResponses.prune(Number.MAX_SAFE_INTEGER);
      }
      expect(await works(next, first.body.secret)).toBe(true);
      expect((await make(next.admin, { expiresIn: '1h' })).body.id).toBe(first.body.id);
      expect(await works(next, first.body.secret)).toBe(false);
      expect((await make(await next.as('admin'), { expiresIn: '1h' })).body.id).not.toBe(first.body.id);
    });
  });

  test('without a key, the same request twice is two requests', async () => {
    expect((await api.post('/v1/volumes', { name: 'a' })).status).toBe(201);
    expect((await api.post('/v1/volumes', { name: 'a' })).status).toBe(409);
  });
});

describe('Prefer: respond-async', () => {
  const later = { prefer: 'respond-async' };
  const show = async (id: string) => (await api.get(`/v1/operations/${id}`)).body;

  test('answers with an operation that leads to the result', async () => {
    const gate = kind.close('create');
    const { status, headers, body } = await api.post('/v1/volumes', { name: 'slow' }, later);
    expect(status).toBe(202);
    expect(headers).toMatchObject({ location: `/v1/operations/${body.id}`, 'preference-applied': 'respond-async' });
    expect(body).toMatchObject({ kind: 'volume.create', subject: 'local/slow', state: 'running', result: null });
    expect(await show(body.id)).toMatchObject({ state: 'running', endedAt: null });
    gate.open();
    await vi.waitFor(async () => expect(await show(body.id)).toMatchObject({ state: 'done' }));
    const { result } = await show(body.id);
    const { storeIdentity, ...volume } = result;
    expect(volume).toMatchObject({ name: 'slow', store: 'local' });
    expect((await api.get('/v1/volumes/slow')).body).toMatchObject(volume);
    expect((await api.get('/v1/stores/local')).body.identity).toBe(storeIdentity);
  });

  test('the operation has the error of a failure', async () => {
    const gate = kind.close('label');
    await api.post('/v1/volumes', { name: 'a' });
    const { body } = await api.patch('/v1/volumes/a', { labels: { x: '1' } }, later);
    await gate.reached;
    await server.admin.post(`/v1/operations/${body.id}/cancel`);
    await vi.waitFor(async () => expect(await show(body.id)).toMatchObject({ state: 'canceled' }));
    expect(await show(body.id)).toMatchObject({
      error: { code: 'canceled', action: expect.stringMatching(/./) },
      result: null,
    });
    gate.open();
  });

  test('a failure before the operation starts is answered at once', async () => {
    expect(await api.post('/v1/volumes', { name: 'x.meta' }, later)).toMatchObject({ status: 400 });
    expect(await api.delete('/v1/volumes/nobody', later)).toMatchObject({ status: 404 });
  });

  test('a request that needs no work is answered with its result', async () => {
    await api.post('/v1/volumes', { name: 'a' });
    expect(await api.post('/v1/volumes/a/rename', { name: 'a' }, later)).toMatchObject({ status: 200 });
    expect((await api.post('/v1/stores/local/default', undefined, later)).status).toBe(200);
  });

  test('is found among several preferences', async () => {
    const { status } = await api.post('/v1/volumes', { name: 'a' }, { prefer: 'wait=10, Respond-Async' });
    expect(status).toBe(202);
    expect((await api.post('/v1/volumes', { name: 'b' }, { prefer: 'wait=10' })).status).toBe(201);
  });

  test('with a key, a repeat gets the same operation', async () => {
    const headers = { ...later, 'idempotency-key': 'k1' };
    const first = await api.post('/v1/volumes', { name: 'a' }, headers);
    const again = await api.post('/v1/volumes', { name: 'a' }, headers);
    expect(again).toMatchObject({ status: 202, body: { id: first.body.id } });
  });

  test("a repeat gets the operation's current state, also after a restart", async () => {
    const headers = { ...later, 'idempotency-key': 'k1' };
    const gate = kind.close('create');
    const ask = (by: Api) => by.post('/v1/volumes', { name: 'a' }, headers);
    const { body } = await ask(api);
    await gate.reached;
    expect(await ask(api)).toMatchObject({ status: 202, body: { id: body.id, state: 'running', result: null } });
    gate.open();
    await vi.waitFor(async () => expect(await show(body.id)).toMatchObject({ state: 'done' }));
    const done = { status: 202, body: { id: body.id, state: 'done', result: { name: 'a' } } };
    expect(await ask(api)).toMatchObject(done);
    expect((await ask(api)).headers['location']).toBe(`/v1/operations/${body.id}`);
    await server.stop();
    await using next = await startServer({ folder: server.folder });
    expect(await ask(next.remote(await firstToken(server.folder)))).toMatchObject(done);
  });

  test('after a failure the key is forgotten, and the work is retried', async () => {
    const headers = { ...later, 'idempotency-key': 'k1' };
    const gate = kind.close('create');
    const ask = () => api.post('/v1/volumes', { name: 'a' }, headers);
    const first = (await ask()).body;
    await gate.reached;
    await api.post(`/v1/operations/${first.id}/cancel`);
    await vi.waitFor(async () => expect(await show(first.id)).toMatchObject({ state: 'canceled' }));
    gate.open();
    const second = await ask();
    expect(second).toMatchObject({ status: 202, body: { state: 'running' } });
    expect(second.body.id).not.toBe(first.id);
    await vi.waitFor(async () => expect(await show(second.body.id)).toMatchObject({ state: 'done' }));
    expect(await count()).toBe(1);
    expect(await api.post('/v1/volumes', { name: 'b' }, headers)).toMatchObject({ status: 409 });
  });

  test('the work is also retried if the failure was found at the next start', async () => {
    const headers = { ...later, 'idempotency-key': 'k1' };
    const { body } = await api.post('/v1/volumes', { name: 'a' }, headers);
    await vi.waitFor(async () => expect(await show(body.id)).toMatchObject({ state: 'done' }));
    await api.delete('/v1/volumes/a');
    await server.stop();
    const db = new DatabaseSync(join(server.folder, 'state.db'));
    db.prepare("UPDATE operations SET state = 'failed' WHERE id = ?").run(body.id);
    // The answer that was kept while the work ran.
    db.exec(`UPDATE answers SET body = replace(body, '"done"', '"running"')`);
    db.close();
    await using next = await startServer({ folder: server.folder });
    const again = await next.remote(await firstToken(server.folder)).post('/v1/volumes', { name: 'a' }, headers);
    expect(again.status).toBe(202);
    expect(again.body.id).not.toBe(body.id);
  });

  test('cancelling a running operation makes its request fail, and does not change one that has ended', async () => {
    const gate = kind.close('create');
    const made = api.post('/v1/volumes', { name: 'a' });
    await gate.reached;
    const [{ id }] = (await api.get('/v1/operations')).body.items;
    expect((await api.post(`/v1/operations/${id}/cancel`)).status).toBe(200);
    expect(await made).toMatchObject({ status: 499, body: { code: 'canceled' } });
    expect(await api.post(`/v1/operations/${id}/cancel`)).toMatchObject({ status: 200, body: { state: 'canceled' } });
    gate.open();
    expect((await api.post('/v1/volumes', { name: 'a' })).status).toBe(201);
  });

  test('a client that disconnects does not cancel its request', async () => {
    const gate = kind.close('create');
    const gone = new AbortController();
    const asked = fetch(`http://127.0.0.1:${server.port}/v1/volumes`, {
      method: 'POST',
      body: JSON.stringify({ name: 'left' }),
      headers: { 'content-type': 'application/json', authorization: `Bearer ${await firstToken(server.folder)}` },
      signal: gone.signal,
    }).catch(() => undefined);
    await gate.reached;
    gone.abort();
    await asked;
    gate.open();
    await vi.waitFor(async () => expect((await api.get('/v1/volumes/left')).status).toBe(200));
  });
});

describe('while the server stops', () => {
  test('work in flight ends and is answered, and new requests on open connections are refused', async () => {
    const gate = kind.close('create');
    const made = api.post('/v1/volumes', { name: 'a' });
    await gate.reached;
    // Opens a second connection, which stays open.
    expect((await api.get('/v1/volumes')).status).toBe(200);
    const stopped = server.stop();
    await vi.waitFor(() => expect(api.get('/healthz')).rejects.toThrow());
    gate.open();
    const answer = await made;
    expect(answer.status).toBe(201);
    expect(answer.headers.connection).toBe('close');
    await stopped;
    await expect(api.get('/v1/volumes')).rejects.toThrow();
  });

  test('a request on a busy connection gets a problem, and the connection is closed', async () => {
    const gate = kind.close('create');
    const made = api.post('/v1/volumes', { name: 'a' });
    await gate.reached;
    const socket = connect(server.port, '127.0.0.1');
    const received: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => received.push(chunk));
    const closed = new Promise((resolve) => socket.once('close', resolve));
    const auth = `authorization: Bearer ${await firstToken(server.folder)}`;
    // Half a request: the connection is busy when the stop begins, and the rest arrives afterwards.
    socket.write(`GET /v1/volumes HTTP/1.1\r\nhost: x\r\n${auth}\r\n`);
    await vi.waitFor(() => expect(server.core.operations.running).toBe(1));
    const stopped = server.stop();
    socket.write('\r\n');
    await closed;
    const text = Buffer.concat(received).toString();
    expect(text).toMatch(/^HTTP\/1\.1 503 /);
    expect(text).toContain('"reason":"stopping"');
    expect(text.toLowerCase()).toContain('connection: close');
    gate.open();
    expect((await made).status).toBe(201);
    await stopped;
  });
});
