import { once } from 'node:events';
import { createServer as createSecureServer } from 'node:https';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { certificate } from '#testing/certificate.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import type { Identity } from './access.ts';
import { createKubeClient, type KubeClient } from './client.ts';
import { KubeError } from './errors.ts';
import { claims, leases, nodes, persistentVolumes, pods, tokenRequests } from './resources.ts';

const { signal } = new AbortController();
let api: FakeKubeApi;
let client: KubeClient;

beforeEach(async () => {
  api = await startKubeApi();
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'stowage/test' });
});
afterEach(async () => {
  client[Symbol.dispose]();
  await api[Symbol.asyncDispose]();
});

async function failure(work: Promise<unknown>): Promise<KubeError> {
  const thrown: unknown = await work.then(
    () => 'it did not fail',
    (error: unknown) => error,
  );
  if (!(thrown instanceof KubeError)) throw new Error('not a KubeError', { cause: thrown });
  return thrown;
}

/** A server that calls `onData` for all received data, and otherwise does not answer. */
async function rawServer(onData: (socket: Socket) => void): Promise<AsyncDisposable & { readonly server: URL }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined).on('data', () => onData(socket));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    server: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`),
    [Symbol.asyncDispose]: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

const clientOf = (server: URL, clock = systemClock()): KubeClient =>
  createKubeClient({ access: { ...api.access, server }, clock, userAgent: 'stowage/test' });

describe('a request', () => {
  test('has the credential and the user agent', async () => {
    let headers: NodeJS.Dict<string | string[]> = {};
    api.intercept = (request) => {
      headers = request.headers;
      return false;
    };
    await client.raw({ method: 'GET', path: '/version' }, signal);
    expect(headers).toMatchObject({
      accept: 'application/json',
      authorization: 'Bearer secret-token',
      'user-agent': 'stowage/test',
    });
  });

  test('gets the kind of the object unless it has one', async () => {
    const bodies: unknown[] = [];
    api.intercept = (_request, _response, body) => {
      bodies.push(JSON.parse(body));
      return false;
    };
    await client.create(leases, { metadata: { namespace: 'a', name: 'l' } }, signal);
    const request = { apiVersion: 'authentication.k8s.io/v1', metadata: {}, spec: { audiences: ['x'] } };
    await failure(client.create(tokenRequests, request, signal, { namespace: 'a', name: 'me', subresource: 'token' }));
    expect(bodies).toMatchObject([
      { apiVersion: 'coordination.k8s.io/v1', kind: 'Lease' },
      { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest' },
    ]);
    expect(api.requests.at(-1)).toBe('POST /api/v1/namespaces/a/serviceaccounts/me/token');
  });

  test('escapes a name that would change the path', async () => {
    api.intercept = (_request, response) => response.end('{}') && true;
    await client.get(nodes, { name: 'a/../../secrets?x' }, signal);
    expect(api.requests).toEqual(['GET /api/v1/nodes/a%2F..%2F..%2Fsecrets%3Fx']);
    expect(() => client.get(nodes, { name: '..' }, signal)).toThrow('“..” is not a valid name');
    expect(() => client.get(nodes, { name: '' }, signal)).toThrow('“” is not a valid name');
  });

  test("keeps the path prefix of the server's URL", async () => {
    using prefixedClient = clientOf(new URL(`http://127.0.0.1:${api.port}/clusters/a/`));
    api.intercept = (_request, response) => response.end('{}') && true;
    await prefixedClient.get(nodes, { name: 'n' }, signal);
    expect(api.requests).toEqual(['GET /clusters/a/api/v1/nodes/n']);
  });

  test('has the content type of its kind of patch', async () => {
    const types: (string | undefined)[] = [];
    api.put('/api/v1/nodes', { metadata: { name: 'n' } });
    api.intercept = (request) => {
      types.push(request.headers['content-type']);
      return false;
    };
    const at = { name: 'n' };
    await client.patch(nodes, at, { kind: 'merge', body: {} }, signal);
    await client.patch(nodes, at, { kind: 'json', body: [] }, signal);
    await client.patch(nodes, at, { kind: 'apply', body: {}, manager: 'me', force: true }, signal);
    expect(types).toEqual([
      'application/merge-patch+json',
      'application/json-patch+json',
      'application/apply-patch+yaml',
    ]);
    expect(api.requests.at(-1)).toBe('PATCH /api/v1/nodes/n?fieldManager=me&force=true');
  });

  test('reuses the connection of the previous request', async () => {
    const ports = new Set<number | undefined>();
    api.intercept = (request) => {
      ports.add(request.socket.remotePort);
      return false;
    };
    for (let i = 0; i < 5; i++) await client.raw({ method: 'GET', path: '/version' }, signal);
    expect(ports.size).toBe(1);
  });

  test('reuses the connections of an earlier burst', async () => {
    const ports = new Set<number | undefined>();
    api.intercept = (request) => {
      ports.add(request.socket.remotePort);
      return false;
    };
    for (let burst = 0; burst < 3; burst++)
      await Promise.all(Array.from({ length: 16 }, () => client.raw({ method: 'GET', path: '/version' }, signal)));
    expect(ports.size).toBe(16);
  });
});

describe('lists', () => {
  test('have pages of one snapshot', async () => {
    for (let i = 0; i < 7; i++) api.put('/api/v1/persistentvolumes', { metadata: { name: `pv-${i}` } });
    const pages: string[][] = [];
    const versions = new Set<string>();
    for await (const page of client.list(persistentVolumes, { limit: 3 }, signal)) {
      pages.push(page.items.map(({ metadata }) => metadata.name ?? ''));
      versions.add(page.resourceVersion);
      api.put('/api/v1/persistentvolumes', { metadata: { name: `later-${pages.length}` } });
    }
    expect(pages).toEqual([['pv-0', 'pv-1', 'pv-2'], ['pv-3', 'pv-4', 'pv-5'], ['pv-6']]);
    expect(versions.size).toBe(1);
  });

  test('are limited to a namespace and to selectors', async () => {
    for await (const _ of client.list(pods, { namespace: 'a', labelSelector: 'x=y', fieldSelector: 'z=1' }, signal));
    expect(api.requests).toEqual(['GET /api/v1/namespaces/a/pods?labelSelector=x%3Dy&fieldSelector=z%3D1&limit=500']);
  });

  test('fail with 410 when they expire between pages', async () => {
    for (let i = 0; i < 4; i++) api.put('/api/v1/nodes', { metadata: { name: `n${i}` } });
    const pages = client.list(nodes, { limit: 2 }, signal);
    await pages.next();
    api.compact();
    expect(await failure(pages.next())).toMatchObject({ status: 410, reason: 'Expired' });
  });

  test('fail as garbled if the response is not a list', async () => {
    api.intercept = (_request, response) => response.end('{"kind":"Node"}') && true;
    expect(await failure(client.list(nodes, {}, signal).next())).toMatchObject({
      failure: 'garbled',
      message: 'GET /api/v1/nodes: the answer is not a list',
    });
  });

  test('are empty if their items are null', async () => {
    api.intercept = (_request, response) => {
      response.end('{"metadata":{"resourceVersion":"7"},"items":null}');
      return true;
    };
    expect((await client.list(nodes, {}, signal).next()).value).toMatchObject({ items: [], resourceVersion: '7' });
  });
});

describe('a KubeError is thrown when', () => {
  test('the API server returns an error', async () => {
    api.intercept = (_request, response) => {
      api.refuse(response, 403, 'Forbidden', {
        message: 'nodes "n" is forbidden:\n  no',
        details: { causes: [{ reason: 'NamespaceTerminating' }] },
      });
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({
      failure: 'refused',
      status: 403,
      reason: 'Forbidden',
      serverMessage: 'nodes "n" is forbidden: no',
      message: 'GET /api/v1/nodes/n: nodes "n" is forbidden: no',
      causes: ['NamespaceTerminating'],
    });
  });

  test.each([
    ['in a header', { headers: { 'retry-after': '7' } }],
    ['in the body', { details: { retryAfterSeconds: 7 } }],
  ])('the API server is busy, and tells when to retry %s', async (_where, more) => {
    api.intercept = (_request, response) => {
      api.refuse(response, 429, 'TooManyRequests', more);
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({ status: 429, retryAfterMs: 7_000 });
    expect(api.requests.length).toBe(1);
  });

  test('a proxy answers with its own error page', async () => {
    api.intercept = (_request, response) => {
      response.writeHead(502).end('<html>bad gateway</html>');
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({
      status: 502,
      reason: '',
      message: 'GET /api/v1/nodes/n: <html>bad gateway</html>',
    });
  });

  test('a redirection is not followed', async () => {
    api.intercept = (_request, response) => {
      response.writeHead(302, { location: 'http://example.com/' }).end();
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({ failure: 'refused', status: 302 });
  });

  test('nothing listens', async () => {
    await api.down();
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({
      failure: 'unreachable',
      status: 0,
    });
  });

  test('the connection breaks during the response', async () => {
    api.intercept = (_request, response) => {
      response.writeHead(200, { 'content-length': '100' }).write('{"meta', () => response.socket?.destroy());
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({ failure: 'lost' });
  });

  test('the server does not answer', async () => {
    const clock = createFakeClock();
    await using silent = await rawServer(() => clock.advance(30_000));
    using otherClient = clientOf(silent.server, clock);
    expect(await failure(otherClient.get(nodes, { name: 'n' }, signal))).toMatchObject({
      failure: 'deadline',
      message: 'GET /api/v1/nodes/n: no answer within 30000 ms',
    });
  });

  test('the caller cancels during the request', async () => {
    const stop = new AbortController();
    await using silent = await rawServer(() => stop.abort(new Error('enough')));
    using otherClient = clientOf(silent.server);
    expect(await failure(otherClient.get(nodes, { name: 'n' }, stop.signal))).toMatchObject({ failure: 'canceled' });
    expect(await failure(otherClient.get(nodes, { name: 'n' }, stop.signal))).toMatchObject({ failure: 'canceled' });
  });

  test('the caller cancels while the request waits for a connection', async () => {
    using limitedClient = createKubeClient({
      access: api.access,
      clock: systemClock(),
      userAgent: 'test',
      maxSockets: 1,
    });
    const arrived = Promise.withResolvers<void>();
    api.intercept = () => {
      arrived.resolve();
      return true;
    };
    const first = new AbortController();
    const answer = failure(limitedClient.get(nodes, { name: 'held' }, first.signal));
    await arrived.promise;
    const second = new AbortController();
    const waiting = failure(limitedClient.get(nodes, { name: 'waits' }, second.signal));
    // After this turn of the event loop, the request waits for the connection.
    await nextTurn();
    second.abort();
    expect(await waiting).toMatchObject({ failure: 'canceled' });
    first.abort();
    expect(await answer).toMatchObject({ failure: 'canceled' });
  });

  test('the response is not HTTP', async () => {
    await using mail = await rawServer((socket) => socket.end('220 mail ready\r\n'));
    using otherClient = clientOf(mail.server);
    expect(await failure(otherClient.get(nodes, { name: 'n' }, signal))).toMatchObject({ failure: 'garbled' });
  });

  test('the response is longer than the limit', async () => {
    api.intercept = (_request, response) => {
      const piece = Buffer.alloc(1 << 20, 0x20);
      const more = (): void => {
        while (!response.destroyed && response.write(piece));
        if (!response.destroyed) response.once('drain', more);
      };
      more();
      return true;
    };
    expect(await failure(client.get(nodes, { name: 'n' }, signal))).toMatchObject({
      failure: 'garbled',
      message: `GET /api/v1/nodes/n: the answer is larger than ${8 << 20} bytes`,
    });
  });

  test('a GET is retried if its idle connection was closed', async () => {
    await client.raw({ method: 'GET', path: '/version' }, signal);
    let isFirst = true;
    api.intercept = (request) => {
      if (!isFirst) return false;
      isFirst = false;
      request.socket.resetAndDestroy();
      return true;
    };
    await client.raw({ method: 'GET', path: '/version' }, signal);
    expect(api.requests.length).toBe(3);
  });

  test('a call that changes something is not sent twice', async () => {
    await client.raw({ method: 'GET', path: '/version' }, signal);
    api.intercept = (request) => {
      request.socket.resetAndDestroy();
      return true;
    };
    const claim = { metadata: { namespace: 'a', name: 'c' }, spec: {} };
    expect(await failure(client.create(claims, claim, signal))).toMatchObject({ failure: 'lost' });
    expect(api.requests.length).toBe(2);
  });
});

describe('credentials', () => {
  const identities: Identity[] = [
    { authorization: 'Bearer old', tls: {} },
    { authorization: 'Bearer new', tls: {} },
  ];
  function withIdentities(current: () => Identity, refused: (identity: Identity) => Identity): KubeClient {
    const identity = (_signal: AbortSignal, oldIdentity?: Identity): Promise<Identity> =>
      Promise.resolve(oldIdentity === undefined ? current() : refused(oldIdentity));
    return createKubeClient({ access: { ...api.access, identity }, clock: systemClock(), userAgent: 'x' });
  }
  const [oldIdentity, newIdentity] = identities as [Identity, Identity];
  const rejectOldCredential = (): void => {
    api.intercept = (request, response) => {
      if (request.headers.authorization === newIdentity.authorization) return false;
      api.refuse(response, 401, 'Unauthorized');
      return true;
    };
  };

  test('that were rejected are renewed once, for any call', async () => {
    rejectOldCredential();
    using otherClient = withIdentities(
      () => oldIdentity,
      () => newIdentity,
    );
    await otherClient.create(leases, { metadata: { namespace: 'a', name: 'l' } }, signal);
    expect(api.requests.length).toBe(2);
  });

  test('that are rejected again are an error', async () => {
    rejectOldCredential();
    using otherClient = withIdentities(
      () => oldIdentity,
      (same) => same,
    );
    expect(await failure(otherClient.get(nodes, { name: 'n' }, signal))).toMatchObject({
      status: 401,
      reason: 'Unauthorized',
    });
    expect(api.requests.length).toBe(1);
  });

  test('with invalid characters are an error that does not show them', async () => {
    using otherClient = withIdentities(
      () => ({ authorization: 'Bearer two\nlines', tls: {} }),
      (same) => same,
    );
    const error = await failure(otherClient.get(nodes, { name: 'n' }, signal));
    expect(error).toMatchObject({
      failure: 'misconfigured',
      message: 'GET /api/v1/nodes/n: the credential has characters in it that cannot be sent',
    });
    expect(inspect(error, { depth: null, showHidden: true })).not.toContain('lines');
  });

  test('are in no error, even if the response repeats them', async () => {
    api.intercept = (request, response) => {
      response.writeHead(400).end(`what is ${request.headers.authorization ?? ''}?`);
      return true;
    };
    const refused = await failure(client.get(nodes, { name: 'n' }, signal));
    expect(refused.message).toBe('GET /api/v1/nodes/n: what is Bearer ***?');
    api.intercept = (_request, response) => response.end('{"data":{"password":"c2VjcmV0LXRva2Vu"') && true;
    const garbled = await failure(client.get(nodes, { name: 'n' }, signal));
    expect(garbled.message).toBe('GET /api/v1/nodes/n: the answer is not JSON');
    await api.down();
    const unreachable = await failure(client.get(nodes, { name: 'n' }, signal));
    for (const error of [refused, garbled, unreachable]) {
      const inspected = inspect(error, { depth: null, showHidden: true });
      expect(inspected).not.toContain('secret-token');
      expect(inspected).not.toContain('c2VjcmV0');
    }
  });
});

test.skipIf(lacks('openssl'))('nothing is sent to an untrusted TLS server', async () => {
  const [ours, other] = [certificate('api'), certificate('api')];
  const authorizations: string[] = [];
  const server = createSecureServer(ours, (request, response) => {
    authorizations.push(request.headers.authorization ?? '');
    response.end('{}');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  try {
    const url = new URL(`https://127.0.0.1:${(server.address() as AddressInfo).port}`);
    let ca = other.cert.toString();
    const identity = (): Promise<Identity> => Promise.resolve({ authorization: 'Bearer a', tls: { ca } });
    using otherClient = createKubeClient({
      access: { server: url, namespace: '', identity },
      clock: systemClock(),
      userAgent: 'x',
    });
    expect(await failure(otherClient.get(nodes, { name: 'n' }, signal))).toMatchObject({ failure: 'unreachable' });
    expect(authorizations).toEqual([]);
    ca = ours.cert.toString();
    await otherClient.get(nodes, { name: 'n' }, signal);
    expect(authorizations).toEqual(['Bearer a']);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});
