import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { type ClientHttp2Session, connect } from 'node:http2';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { streamOver } from '#base/socket-stream.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import {
  agentToken,
  type LeaderServer,
  leaderServers,
  scopeOf,
  startCuttableProxy,
  testNamespace,
} from '#testing/leader-servers.ts';
import { createCredential } from '../leader/certificate.ts';
import { serverNames } from '../names.ts';

const servers = leaderServers();
const emptyApi: RequestListener = (_, response) => response.end('{}');
const statusRequest = { method: 'GET', path: '/v1/status' } as const;

describe('an agent', () => {
  test('waits for a leader, and for the authority of its certificate', async () => {
    const leader = await servers.startServer();
    const agent = servers.connectAgent({ api: emptyApi });
    await eventually(() => servers.api.watches).toBe(2);
    // An EndpointSlice without an address.
    servers.api.put(`/apis/discovery.k8s.io/v1/namespaces/${testNamespace}/endpointslices`, {
      metadata: { name: 'stowage-leader' },
      addressType: 'IPv4',
      endpoints: null,
      ports: null,
    } as never);
    expect(agent.isConnected).toBe(false);
    servers.publishLeader(leader);
    await eventually(() => [agent.isConnected, leader.agents.nodes()]).toEqual([true, ['node-1']]);
  });

  test('connects to the next leader, although the first is still running', async () => {
    const [first, second] = [await servers.startServer(), await servers.startServer()];
    servers.publishLeader(first);
    servers.connectAgent({ api: emptyApi });
    await eventually(() => first.agents.nodes()).toEqual(['node-1']);
    servers.publishLeader(second);
    await eventually(() => second.agents.nodes()).toEqual(['node-1']);
    await eventually(() => first.agents.nodes()).toEqual([]);
  });

  test('stays connected without a leader, and while the certificate is renewed', async () => {
    const leader = await servers.startServer();
    servers.publishLeader(leader);
    servers.connectAgent({ api: emptyApi });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    const agentChanges: string[] = [];
    onTestFinished(leader.agents.follow((node) => agentChanges.push(node)));
    servers.api.remove(`/apis/discovery.k8s.io/v1/namespaces/${testNamespace}/endpointslices`, 'stowage-leader');
    const renewed = createCredential(serverNames(testNamespace), Date.now());
    leader.tlsServer.setCredential(renewed);
    const renewedLeader: LeaderServer = { ...leader, credential: renewed };
    servers.publishLeader(renewedLeader);
    expect(await leader.agents.call('node-1', statusRequest, scopeOf())).toEqual({});
    expect(agentChanges).toEqual([]);
    expect(servers.reviewed).toEqual(['node-1']);
  });

  test('sends its current token after an earlier one was refused', async () => {
    const leader = await servers.startServer();
    servers.publishLeader(leader);
    servers.connectAgent({ api: emptyApi });
    writeFileSync(servers.tokenFile, agentToken(''));
    // The agent may have read the first token before.
    await eventually(() => servers.reviewed.length).toBeGreaterThan(0);
    writeFileSync(servers.tokenFile, agentToken('node-7'));
    await eventually(() => leader.agents.nodes()).toContain('node-7');
  });

  test('sends its token only to a server with the leader’s certificate', async () => {
    const leader = await servers.startServer();
    const other = createCredential(serverNames(testNamespace), Date.now());
    const receivedChunks: Buffer[] = [];
    const connected = Promise.withResolvers<void>();
    const impostor = createServer(other).listen(0, '127.0.0.1');
    impostor.on('connection', () => connected.resolve());
    impostor.on('secureConnection', (socket) => socket.on('data', (chunk: Buffer) => receivedChunks.push(chunk)));
    impostor.on('tlsClientError', () => undefined);
    onTestFinished(() => void impostor.close());
    await once(impostor, 'listening');
    servers.publishLeader(leader, (impostor.address() as AddressInfo).port);
    const agent = servers.connectAgent({ api: emptyApi });
    await connected.promise;
    servers.publishLeader(leader);
    await eventually(() => agent.isConnected).toBe(true);
    expect(Buffer.concat(receivedChunks).toString()).toBe('');
  });

  test('stays connected while the API server is away, and reconnects after its connection broke', async () => {
    const leader = await servers.startServer();
    const proxy = await startCuttableProxy(leader.port);
    servers.publishLeader(leader, proxy.port);
    servers.connectAgent({ api: emptyApi });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    await servers.api.down();
    expect(await leader.agents.call('node-1', statusRequest, scopeOf())).toEqual({});
    proxy.cut();
    await eventually(() => leader.agents.nodes()).toEqual([]);
    await servers.api.up();
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
  });

  test('notices a stalled connection within 20 s', async () => {
    const clock = createFakeClock();
    const leader = await servers.startServer();
    const proxy = await startCuttableProxy(leader.port);
    servers.publishLeader(leader, proxy.port);
    const agent = servers.connectAgent({ api: emptyApi, clock });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    for (let i = 0; i < 3; i++) {
      clock.advance(10_000);
      // The peer answers the first ping after it has read it, and only then the agent sends the second one.
      for (let n = 0; n < 2; n++) expect(await leader.agents.call('node-1', statusRequest, scopeOf())).toEqual({});
    }
    proxy.freeze();
    clock.advance(10_000);
    expect(agent.isConnected).toBe(true);
    clock.advance(10_000);
    await eventually(() => agent.isConnected).toBe(false);
  });

  test('stops at once, also while it connects', async () => {
    const leader = await servers.startServer();
    const proxy = await startCuttableProxy(leader.port);
    proxy.freeze();
    servers.publishLeader(leader, proxy.port);
    const agent = servers.connectAgent({ api: emptyApi });
    await eventually(() => servers.api.watches).toBe(2);
    await agent[Symbol.asyncDispose]();
    await eventually(() => servers.api.watches).toBe(0);
  });
});

describe('a hostile leader', () => {
  /** Upgrades the connection of every agent, and returns its HTTP/2 session. */
  async function startHostileLeader(): Promise<{
    readonly session: Promise<ClientHttp2Session>;
    readonly server: Server;
  }> {
    const credential = createCredential(serverNames(testNamespace), Date.now());
    const upgradedSession = Promise.withResolvers<ClientHttp2Session>();
    const server = createServer(credential).listen(0, '127.0.0.1');
    server.on('upgrade', (_, socket, head) => {
      socket.on('error', () => undefined);
      onTestFinished(() => void socket.destroy());
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stowage-agent/1\r\n\r\n');
      const session = connect('http://agent', { createConnection: () => streamOver(socket, { head }) });
      session.on('error', () => undefined);
      upgradedSession.resolve(session);
    });
    await once(server, 'listening');
    onTestFinished(() => void server.close());
    const leader = await servers.startServer();
    servers.publishLeader({ ...leader, credential, port: (server.address() as AddressInfo).port });
    return { session: upgradedSession.promise, server };
  }

  async function statusOf(session: ClientHttp2Session, headers: Record<string, string>): Promise<number> {
    const stream = session.request(headers);
    stream.on('error', () => undefined).resume();
    const { promise, resolve } = Promise.withResolvers<number>();
    stream.once('response', (answer) => resolve(answer[':status'] ?? 0));
    stream.once('close', () => resolve(stream.rstCode));
    stream.end();
    return await promise;
  }

  // Node's HTTP/2 refuses some of these requests itself, with an error code instead of an answer.
  test.each<[string, Record<string, string>, number]>([
    ['a path outside the API', { ':path': '/metrics' }, 404],
    ['a path that is only a prefix', { ':path': '/v1' }, 404],
    ['an absolute URL', { ':path': 'http://elsewhere/v1/x' }, 1],
    ['an unknown method', { ':path': '/v1/status', ':method': 'TRACE' }, 404],
    ['the creation of a store', { ':path': '/v1/stores', ':method': 'POST' }, 404],
    ['the removal of a store', { ':path': '/v1/stores/local', ':method': 'DELETE' }, 404],
    ['the adoption of all directories', { ':path': '/v1/stores/local/adopt', ':method': 'POST' }, 404],
    ['a mount', { ':path': '/v1/volumes/a/mount', ':method': 'POST' }, 404],
    ['an unmount', { ':path': '/v1/volumes/a/unmount', ':method': 'POST' }, 404],
    ['a mount, with dot segments in the path', { ':path': '/v1/volumes/a%2Fmount/../mount', ':method': 'POST' }, 404],
    ['a mount, with a query', { ':path': '/v1/volumes/a/mount?expand', ':method': 'POST' }, 404],
    ['a change with a query', { ':path': '/v1/volumes/a?force=true', ':method': 'DELETE' }, 404],
    ['the release of a use record', { ':path': '/v1/volumes/a/uses/b', ':method': 'DELETE' }, 404],
    ['a purge of the trash', { ':path': '/v1/trash/a', ':method': 'DELETE' }, 404],
    ['a token', { ':path': '/v1/tokens', ':method': 'POST' }, 404],
    ['the list of tokens', { ':path': '/v1/tokens' }, 404],
    ['an upgrade of the data paths', { ':path': '/v1/client/upgrade', ':method': 'POST' }, 404],
    ['a volume with an empty name', { ':path': '/v1/volumes/', ':method': 'DELETE' }, 404],
    ['a volume name with a slash', { ':path': '/v1/volumes/a/b', ':method': 'DELETE' }, 404],
    ['a parent path, percent-encoded', { ':path': '/v1/volumes/%2e%2E/rename', ':method': 'POST' }, 404],
    ['a parent path', { ':path': '/v1/stores/..' }, 404],
    ['the same path, with a query', { ':path': '/v1/volumes/.?limit=1' }, 404],
    ['an address that HTTP/1 cannot have', { ':path': '/v1/a b' }, 1],
    ['too many headers', Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`a${i}`, 'b'])), 11],
  ])('that asks for %s is refused', async (_, headers, status) => {
    const { session } = await startHostileLeader();
    const reachedUrls: string[] = [];
    const api: RequestListener = (request, response) => {
      reachedUrls.push(request.url ?? '');
      response.end('{}');
    };
    servers.connectAgent({ api });
    expect(await statusOf(await session, { ':path': '/v1/status', ...headers })).toBe(status);
    expect(reachedUrls).toEqual([]);
    expect(await statusOf(await session, { ':path': '/v1/status' })).toBe(200);
  });

  test('cannot forward headers that are not allowed', async () => {
    const { session } = await startHostileLeader();
    const receivedHeaders = Promise.withResolvers<unknown>();
    const api: RequestListener = ({ headers }, response) => {
      receivedHeaders.resolve(headers);
      response.end('{}');
    };
    servers.connectAgent({ api });
    const forbiddenHeaders = {
      'x-forwarded-for': 'a',
      cookie: 'b',
      authorization: 'Bearer c',
      prefer: 'respond-async',
    };
    await statusOf(await session, { ':path': '/v1/status', ...forbiddenHeaders, 'idempotency-key': 'k' });
    expect(await receivedHeaders.promise).toEqual({
      host: 'localhost:80',
      'user-agent': 'lightMyRequest',
      'idempotency-key': 'k',
    });
  });

  test('can have a store checked only from the network of a pod', async () => {
    const { session } = await startHostileLeader();
    const receivedBodies: string[] = [];
    const api: RequestListener = (request, response) => {
      void Array.fromAsync(request as AsyncIterable<Buffer>).then((all) => {
        receivedBodies.push(Buffer.concat(all).toString());
        response.end('{}');
      });
    };
    servers.connectAgent({ api });
    const check = async (body: string): Promise<unknown> => {
      const stream = (await session).request({
        ':method': 'POST',
        ':path': '/v1/stores/local/check',
        'content-type': 'application/json',
      });
      stream.on('error', () => undefined).resume();
      const answered = once(stream, 'response');
      stream.end(body);
      const [headers] = await answered;
      await once(stream, 'close');
      return headers[':status'];
    };
    const ignoredBodies = [
      '{"from":"netns:other"}',
      '{"from":"container:web"}',
      '{"from":"pod-address:1.2.3.4","x":1}',
      '{}',
      '',
    ];
    for (const body of ignoredBodies) expect([body, await check(body)]).toEqual([body, 200]);
    expect(receivedBodies.splice(0)).toEqual(ignoredBodies.map(() => ''));
    const forwardedBodies = ['{"from":"pod-address:10.244.1.5"}', '{"from":"pod-address:host"}'];
    for (const body of forwardedBodies) expect(await check(body)).toBe(200);
    expect(receivedBodies).toEqual(forwardedBodies);
  });

  test('that sends a body above the limit is not read to the end', async () => {
    const { session } = await startHostileLeader();
    const receivedBytes = Promise.withResolvers<number>();
    const api: RequestListener = (request, response) => {
      void Array.fromAsync(request as AsyncIterable<Buffer>).then((all) => {
        receivedBytes.resolve(Buffer.concat(all).length);
        response.writeHead(413).end();
      });
    };
    servers.connectAgent({ api });
    const stream = (await session).request({ ':method': 'POST', ':path': '/v1/volumes' });
    stream.on('error', () => undefined).resume();
    // The request never ends.
    stream.write(Buffer.alloc(100_000, 'x'));
    const [answer] = await once(stream, 'response');
    expect([await receivedBytes.promise, answer[':status']]).toEqual([65_537, 413]);
  });

  test('that sends garbage does not prevent a connection to the next leader', async () => {
    const credential = createCredential(serverNames(testNamespace), Date.now());
    const server = createServer(credential).listen(0, '127.0.0.1');
    server.on('upgrade', (_, socket) => {
      socket.on('error', () => undefined);
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: stowage-agent/1\r\n\r\n');
      socket.write(randomBytes(100_000));
    });
    await once(server, 'listening');
    onTestFinished(() => {
      server.close();
      server.closeAllConnections();
    });
    const leader = await servers.startServer();
    const upgradeRequested = once(server, 'upgrade');
    servers.publishLeader({ ...leader, credential, port: (server.address() as AddressInfo).port });
    const agent = servers.connectAgent({ api: emptyApi });
    await upgradeRequested;
    servers.publishLeader(leader);
    await eventually(() => [agent.isConnected, leader.agents.nodes()]).toEqual([true, ['node-1']]);
  });
});
