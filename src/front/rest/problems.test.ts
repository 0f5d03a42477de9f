import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Answer, type Api, startServer, type TestServer } from '#testing/server.ts';

let server: TestServer;
let api: Api;

beforeAll(async () => {
  server = await startServer();
  api = await server.as('admin');
});
afterAll(() => server[Symbol.asyncDispose]());

function expectProblem({ status, headers, body }: Answer, expected: number, reason: string): void {
  expect(headers['content-type']).toMatch(/^application\/problem\+json/);
  expect({ status, reason: body.reason }).toEqual({ status: expected, reason });
  expect(body).toEqual({
    type: `https://stowage.dev/errors/${reason}`,
    title: expect.stringMatching(/./),
    status: expected,
    detail: expect.stringMatching(/./),
    code: expect.stringMatching(/^[a-z-]+$/),
    reason,
    action: expect.stringMatching(/./),
    requestId: expect.stringMatching(/./),
  });
}

const json = { 'content-type': 'application/json' };

describe('every error is a problem with a code and an action', () => {
  test.each(['/', '/v1', '/v2/volumes', '/v1/nope', '/v1/volumes/a/b/c'])('404 %s', async (path) => {
    expectProblem(await api.get(path), 404, 'path-unknown');
  });

  test.each([
    ['PUT', '/v1/volumes', 'GET, HEAD, POST'],
    ['DELETE', '/v1/volumes', 'GET, HEAD, POST'],
    ['POST', '/v1/volumes/a', 'DELETE, GET, HEAD, PATCH'],
    ['OPTIONS', '/v1/stores', 'GET, HEAD, POST'],
    ['TRACE', '/v1/stores', 'GET, HEAD, POST'],
    ['POST', '/healthz', 'GET, HEAD'],
    ['POST', '/metrics', 'GET, HEAD'],
    ['DELETE', '/openapi.json', 'GET, HEAD'],
    ['GET', '/v1/volumes/a/rename', 'POST'],
    ['POST', '/v1/events', 'GET'],
  ])('405 %s %s, with what is allowed', async (method, path, allow) => {
    const answer = await api.call(method, path);
    expectProblem(answer, 405, 'method-not-allowed');
    expect(answer.headers.allow).toBe(allow);
    expect(answer.body.action).toBe(`Use ${allow}.`);
  });

  test('HEAD of the event stream is refused rather than left open', async () => {
    expect(await api.call('HEAD', '/v1/events')).toMatchObject({ status: 405, headers: { allow: 'GET' } });
  });

  test.each(['{', '{"name":}', 'name', '[1,', '"', '{"name":"a"} x', '\ufeff{}'])('400 %j', async (raw) => {
    expectProblem(await api.call('POST', '/v1/volumes', { raw, headers: json }), 400, 'request-malformed');
  });

  test.each(['null', '[]', '"a"', '1', 'true', '{}', '{"name":1}', '{"name":"a","extra":1}', '{"name":"a","bytes":1}'])(
    '400 %s',
    async (raw) => {
      expectProblem(await api.call('POST', '/v1/volumes', { raw, headers: json }), 400, 'request-invalid');
    },
  );

  const letters = 'only the letters A-Z a-z, digits, and _ . - may be used';
  test.each([
    ['/v1/volumes', { name: 'two words' }, `'two words' cannot be a volume name: ${letters}`],
    ['/v1/volumes', { name: '' }, "'' cannot be a volume name: it is empty"],
    ['/v1/volumes', { name: '-x' }, "'-x' cannot be a volume name: it must begin with a letter or a digit"],
    ['/v1/volumes', { name: 'a', store: 'b/c' }, `'b/c' cannot be a store name: ${letters}`],
    ['/v1/volumes/nobody/rename', { name: 'b/c' }, `'b/c' cannot be a volume name: ${letters}`],
    ['/v1/trash/nobody/restore', { name: 'b/c' }, `'b/c' cannot be a volume name: ${letters}`],
    ['/v1/stores', { name: 'b/c', uri: 'local:///x' }, `'b/c' cannot be a store name: ${letters}`],
    ['/v1/stores/nope/adopt', { names: ['a', 'b/c'] }, `'b/c' cannot be a volume name: ${letters}`],
    ['/v1/tokens', { name: 't', role: 'user', stores: ['b/c'] }, `'b/c' cannot be a store name: ${letters}`],
  ])("names are refused in core's own words: %s %j", async (path, body, detail) => {
    const answer = await api.post(path, body);
    expectProblem(answer, 400, 'name-invalid');
    expect(answer.body).toMatchObject({
      detail,
      action: 'Choose a name of 1 to 128 characters from A-Z a-z 0-9 _ . - that begins with a letter or digit.',
    });
  });

  test.each([
    [{ 'two words': 'x' }, "'two words' cannot be a label"],
    [{ a: 'x\n' }, "the value of label 'a' has control characters"],
    [{ a: 'x'.repeat(257) }, "the value of label 'a' is too long"],
    [Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`k${i}`, ''])), '65 labels are too many'],
  ])('and so are labels: %j', async (labels, detail) => {
    const made = await api.post('/v1/volumes', { name: 'a', labels });
    const changed = await api.patch('/v1/volumes/nobody', { labels });
    for (const answer of [made, changed]) {
      expectProblem(answer, 400, 'label-invalid');
      expect(answer.body.detail).toBe(detail);
    }
  });

  test.each([
    ['/v1/volumes', { name: 'a', bytes: '1G' }, 'Expected: Bytes, as a decimal string.'],
    ['/v1/tokens', { name: 't\n', role: 'user' }, 'Expected: 1 to 128 characters, none of them a control character.'],
    ['/v1/volumes/a/unmount', { target: 'x' }, "Expected: Absolute path on the server's host."],
  ])('the action says what is expected, in words: %s %j', async (path, body, action) => {
    const answer = await api.post(path, body);
    expectProblem(answer, 400, 'request-invalid');
    expect(answer.body.action).toBe(action);
    expect(answer.body.detail).toContain('it does not match the expected format');
  });

  test('a token for an empty list of stores is refused', async () => {
    const answer = await api.post('/v1/tokens', { name: 't', role: 'user', stores: [] });
    expectProblem(answer, 400, 'request-invalid');
    expect(answer.body.action).toBe('Expected: One or more stores; omit for all stores.');
    expect((await api.get('/v1/tokens')).text).not.toContain('"t"');
  });

  test('413 for a body that is too large, before it is read', async () => {
    const raw = JSON.stringify({ name: 'x'.repeat(70_000) });
    expectProblem(await api.call('POST', '/v1/volumes', { raw, headers: json }), 413, 'body-too-large');
  });

  test.each(['text/plain', 'application/xml', 'multipart/form-data; boundary=x', 'application/x-www-form-urlencoded'])(
    '415 for %s',
    async (type) => {
      const answer = await api.call('POST', '/v1/volumes', { raw: 'name=a', headers: { 'content-type': type } });
      expectProblem(answer, 415, 'content-type-unsupported');
    },
  );

  test('a body without a content type is refused', async () => {
    const answer = await api.call('POST', '/v1/volumes', { raw: '{"name":"a"}' });
    expect(answer.status).toBe(415);
  });

  test.each([
    ['[', ']'],
    ['{"name":', '}'],
    ['{"labels":{"a":', '}}'],
  ])('a JSON bomb of %s', async (open, close) => {
    const depth = Math.floor(64_000 / (open.length + close.length));
    const raw = `${open.repeat(depth)}1${close.repeat(depth)}`;
    // Also for routes without a body, and with an Idempotency-Key.
    for (const path of ['/v1/volumes', '/v1/stores/nope/adopt']) {
      expectProblem(await api.call('POST', path, { raw, headers: json }), 400, 'request-invalid');
    }
    const headers = { ...json, 'idempotency-key': `bomb ${open}`.replace(' ', '') };
    expectProblem(await api.call('POST', '/v1/stores/nope/default', { raw, headers }), 404, 'store-unknown');
  });

  test.each(['/v1/volumes/%', '/v1/volumes/%zz', '/v1/volumes/%ff%fe', '/%'])(
    'an invalid percent-encoding in %s is refused',
    async (path) => {
      expectProblem(await api.get(path), 400, 'request-malformed');
    },
  );

  test('a path that is too long is refused', async () => {
    const answer = await api.get(`/v1/volumes/${'x'.repeat(400)}`);
    expect([400, 404, 414]).toContain(answer.status);
    expectProblem(answer, answer.status, answer.body.reason);
  });

  test.each([
    ['/v1/volumes?nope=1', "the query has an invalid 'nope': unknown key"],
    ['/v1/volumes?__proto__=1', "the query has an invalid '__proto__': unknown key"],
    ['/v1/stores?x=1', 'this route takes no query parameters'],
    ['/v1/volumes?limit=1&limit=2', "the query has an invalid 'limit': must be integer"],
    ['/v1/volumes?label=novalue', "the query has an invalid 'label.0': it does not match the expected format"],
    ['/v1/volumes?after=x', "the query has an invalid 'after': it does not match the expected format"],
    ['/v1/operations?after=x', "the query has an invalid 'after': it does not match the expected format"],
  ])('%s: %s', async (path, detail) => {
    const answer = await api.get(path);
    expect({ status: answer.status, detail: answer.body.detail }).toEqual({ status: 400, detail });
  });

  test.each(['', 'with space', 'ümlaut', 'x'.repeat(256)])('the Idempotency-Key %j', async (key) => {
    const sent = Buffer.from(key).toString('latin1');
    const answer = await api.post('/v1/volumes', { name: 'keyed' }, { 'idempotency-key': sent });
    expectProblem(answer, 400, 'request-invalid');
  });

  test('an expectation that is unknown', async () => {
    expectProblem(await api.get('/v1/volumes', { expect: '200-maybe' }), 417, 'expectation-unsupported');
  });
});

/** Sends bytes that no HTTP library would send. */
async function bare(
  text: string,
): Promise<{ status: number; head: string; body: { reason: string; action: string; requestId: string } }> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let received = '';
  const socket = connect(server.port, '127.0.0.1', () => socket.write(text));
  socket.on('data', (chunk) => {
    received += String(chunk);
  });
  socket.on('error', reject);
  socket.on('close', () => resolve(received));
  const answer = await promise;
  const [head = '', body = '{}'] = answer.split('\r\n\r\n');
  return { status: Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]), head, body: JSON.parse(body) };
}

describe('malformed HTTP is answered with a problem too', () => {
  test.each([
    ['nonsense', 'HELLO\r\n\r\n', 400, 'request-malformed'],
    ['a bad header', 'GET /v1/volumes HTTP/1.1\r\nbad header\r\n\r\n', 400, 'request-malformed'],
    [
      'two lengths',
      'POST /v1/volumes HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab',
      400,
      'request-malformed',
    ],
    ['headers that are too large', `GET / HTTP/1.1\r\nx: ${'y'.repeat(20_000)}\r\n\r\n`, 431, 'headers-too-large'],
    ['a path that is far too long', `GET /${'y'.repeat(20_000)} HTTP/1.1\r\n\r\n`, 431, 'headers-too-large'],
  ])('%s', async (_what, text, status, reason) => {
    const answer = await bare(text);
    expect(answer).toMatchObject({ status, body: { reason, action: expect.stringMatching(/./) } });
    expect(answer.head.toLowerCase()).toContain('content-type: application/problem+json');
    expect(answer.head.toLowerCase()).toContain('connection: close');
  });

  test('a request without a Host header is accepted', async () => {
    const { status } = await bare('GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n').catch(() => ({ status: 200 }));
    expect(status).toBe(200);
  });
});

test("the client's request id is used if it is safe to log, and replaced otherwise", async () => {
  expect((await api.get('/v1/nope', { 'x-request-id': 'mine-1' })).body.requestId).toBe('mine-1');
  const { body, headers } = await api.get('/v1/nope', { 'x-request-id': 'x"; drop' });
  expect(body.requestId).toMatch(/^[0-9a-f-]{36}$/);
  expect(headers['x-request-id']).toBe(body.requestId);
});

describe('the request id is in every answer', () => {
  test.each(['/v1/volumes', '/v1/nope', '/v1/volumes/%zz', '/healthz', '/metrics', '/openapi.json'])(
    '%s',
    async (path) => {
      expect((await api.get(path, { 'x-request-id': 'mine' })).headers['x-request-id']).toBe('mine');
    },
  );

  test('the event stream', async () => {
    using stream = await api.follow({ 'x-request-id': 'mine' });
    expect(stream.headers).toMatchObject({ 'x-request-id': 'mine', 'cache-control': 'no-store' });
  });

  test('an expectation that is unknown', async () => {
    const { headers, body } = await api.get('/v1/volumes', { expect: 'foo', 'x-request-id': 'mine' });
    expect({ header: headers['x-request-id'], body: body.requestId }).toEqual({ header: 'mine', body: 'mine' });
  });

  test.each(['FOO / HTTP/1.1\r\nhost: x\r\n\r\n', 'HELLO\r\n\r\n'])('malformed HTTP: %j', async (text) => {
    const { head, body } = await bare(text);
    expect(body.requestId).toMatch(/^[0-9a-f-]{36}$/);
    expect(head).toContain(`x-request-id: ${body.requestId}`);
  });
});

test('answers have no-store and nosniff headers', async () => {
  for (const path of ['/v1/volumes', '/v1/nope', '/healthz', '/openapi.json']) {
    expect((await api.get(path)).headers).toMatchObject({
      'cache-control': 'no-store',
      'x-content-type-options': 'nosniff',
    });
  }
});
