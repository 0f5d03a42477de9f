import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { performServerHandshake, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2';
import { connect as connectTcp } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect, type SecureVersion, type TLSSocket } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { agentToken, type LeaderServer, leaderServers, scopeOf, testNamespace } from '#testing/leader-servers.ts';
import { createCredential } from '../leader/certificate.ts';
import { serverNames } from '../names.ts';
import { connectToLeader } from '../tunnel/leader-connection.ts';

const servers = leaderServers();
const [servername] = serverNames(testNamespace);
const statusRequest = { method: 'GET', path: '/v1/status' } as const;

/** Connects and upgrades as an agent, and returns the raw socket. */
async function connectRawAgent(leader: LeaderServer, node = 'evil'): Promise<Duplex> {
  writeFileSync(servers.tokenFile, agentToken(node));
  const options = {
    host: '127.0.0.1',
    port: leader.port,
    servername,
    ca: leader.credential.cert,
    tokenFile: servers.tokenFile,
  };
  const stream = await connectToLeader({ ...options, clock: systemClock() }, scopeOf().signal);
  stream.on('error', () => undefined);
  onTestFinished(() => void stream.destroy());
  return stream;
}

/** An agent that speaks HTTP/2, with answers that the test chooses. */
async function connectHostileAgent(
  leader: LeaderServer,
  answer: (stream: ServerHttp2Stream, session: ServerHttp2Session) => void,
): Promise<void> {
  const session = performServerHandshake(await connectRawAgent(leader));
  session.on('error', () => undefined);
  session.on('stream', (stream) => {
    stream.on('error', () => undefined);
    answer(stream, session);
  });
  await eventually(() => leader.agents.nodes()).toContain('evil');
}

/** Checks that the controller still works: another agent answers. */
async function expectStillWorks(leader: LeaderServer): Promise<void> {
  servers.publishLeader(leader);
  servers.connectAgent({ node: 'good', api: (_, response) => response.end('{"good":true}') });
  await eventually(() => leader.agents.nodes()).toContain('good');
  expect(await leader.agents.call('good', statusRequest, scopeOf())).toEqual({ good: true });
}

describe('a hostile agent', () => {
  test('that sends an endless answer is stopped at the limit', async () => {
    const leader = await servers.startServer({ maxAnswerBytes: 1 << 20 });
    let sent = 0;
    await connectHostileAgent(leader, (stream) => {
      stream.respond({ ':status': 200 });
      const writeMore = (): void => {
        while (!stream.destroyed && stream.write(Buffer.alloc(16_384))) sent += 16_384;
      };
      stream.on('drain', writeMore);
      writeMore();
    });
    await expect(leader.agents.call('evil', statusRequest, scopeOf())).rejects.toMatchObject({
      code: 'internal',
      reason: 'agent-answer-unreadable',
      message: expect.stringContaining('1048576'),
    });
    expect(sent).toBeLessThan(4 << 20);
    await expectStillWorks(leader);
  });

  test('that answers one byte at a time runs into the deadline', async () => {
    const leader = await servers.startServer();
    await connectHostileAgent(leader, (stream) => {
      stream.respond({ ':status': 200 });
      const timer = setInterval(() => stream.write('{'), 1);
      stream.once('close', () => clearInterval(timer));
    });
    await expect(leader.agents.call('evil', { ...statusRequest, deadlineMs: 100 }, scopeOf())).rejects.toMatchObject({
      reason: 'agent-no-answer',
    });
    await expectStillWorks(leader);
  });

  test.each<[string, (stream: ServerHttp2Stream, session: ServerHttp2Session) => void, string]>([
    ['a text that is not JSON', (stream) => stream.end('<html>'), 'agent-answer-unreadable'],
    [
      'an error with an unknown code',
      (stream) => {
        stream.respond({ ':status': 500 });
        stream.end('{"code":"__proto__","reason":"x"}');
      },
      'agent-answer-unreadable',
    ],
    [
      'a list in place of an error',
      (stream) => {
        stream.respond({ ':status': 500 });
        stream.end('[null]');
      },
      'agent-answer-unreadable',
    ],
    ['a reset', (stream) => stream.close(8), 'agent-lost'],
    [
      'half of it, and a reset',
      (stream) => {
        stream.respond({ ':status': 200 });
        stream.write('{"a":1}', () => stream.destroy(new Error('that is all')));
      },
      'agent-lost',
    ],
    ['nothing, and hangs up', (_, session) => session.destroy(), 'agent-lost'],
    [
      'half of it, and hangs up',
      (stream, session) => {
        stream.respond({ ':status': 200 });
        stream.write('{"a":1}', () => session.socket.destroy());
      },
      'agent-lost',
    ],
  ])('that answers %s causes an error', async (_, answer, reason) => {
    const leader = await servers.startServer();
    await connectHostileAgent(leader, answer);
    await expect(leader.agents.call('evil', statusRequest, scopeOf())).rejects.toMatchObject({ reason });
    await expectStillWorks(leader);
  });

  test.each<[string, Buffer]>([
    ['garbage', Buffer.from('HTTP/1.1 200 OK\r\n\r\n'.repeat(100))],
    ['frames that are too large', Buffer.from([0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1])],
    ['invalid settings', Buffer.from([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9])],
  ])('that sends %s is never connected', async (_, bytes) => {
    const leader = await servers.startServer();
    const stream = await connectRawAgent(leader);
    const ended = once(stream, 'close');
    stream.resume();
    stream.write(bytes);
    await ended;
    expect(leader.agents.nodes()).toEqual([]);
    await expectStillWorks(leader);
  });

  test('that sends garbage later is disconnected', async () => {
    const leader = await servers.startServer();
    const stream = await connectRawAgent(leader);
    stream.resume();
    const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    stream.write(settings);
    await eventually(() => leader.agents.nodes()).toEqual(['evil']);
    const pendingCall = leader.agents.call('evil', statusRequest, scopeOf());
    stream.write(Buffer.alloc(4_096, 0x41));
    await expect(pendingCall).rejects.toMatchObject({ reason: 'agent-lost' });
    await eventually(() => leader.agents.nodes()).toEqual([]);
    await expectStillWorks(leader);
  });

  test('that floods the controller with pings does not affect other agents', async () => {
    const leader = await servers.startServer();
    const stream = await connectRawAgent(leader);
    stream.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
    await eventually(() => leader.agents.nodes()).toEqual(['evil']);
    // The agent does not read the answers.
    const ping = Buffer.from([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    const manyPings = Buffer.concat(Array.from({ length: 1_000 }, () => ping));
    for (let i = 0; i < 200 && stream.writable; i++) stream.write(manyPings);
    await expectStillWorks(leader);
  });

  test('that sends nothing at all is disconnected', async () => {
    const clock = createFakeClock();
    const leader = await servers.startServer({ clock });
    const stream = await connectRawAgent(leader);
    const ended = once(stream, 'close');
    clock.advance(10_000);
    clock.advance(10_000);
    stream.resume();
    await ended;
    expect(leader.agents.nodes()).toEqual([]);
  });
});

describe('a client of the server', () => {
  async function connectClient(
    leader: LeaderServer,
    more: { readonly maxVersion?: SecureVersion } = {},
  ): Promise<TLSSocket> {
    const options = { host: '127.0.0.1', port: leader.port, servername, ca: leader.credential.cert, ...more };
    const socket = connect(options);
    onTestFinished(() => void socket.destroy());
    await once(socket, 'secureConnect');
    return socket;
  }
  async function responseTo(leader: LeaderServer, request: string): Promise<string> {
    const socket = await connectClient(leader);
    socket.on('error', () => undefined);
    socket.write(request);
    const chunks = await Array.fromAsync(socket as AsyncIterable<Buffer>);
    return Buffer.concat(chunks).toString('utf8');
  }
  const upgradeRequest = (more: Readonly<Record<string, string>>, path = '/agents', method = 'GET'): string => {
    const headers = { connection: 'Upgrade', upgrade: 'stowage-agent/1', ...more };
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n`;
  };
  const bearer = (token: string) => ({ authorization: `Bearer ${token}` });

  test.each<[string, string, number, string]>([
    ['with no token', upgradeRequest({}), 401, 'token-missing'],
    ['with an unknown token', upgradeRequest(bearer('x')), 401, 'token-refused'],
    ['at another path', upgradeRequest(bearer(agentToken('a')), '/v1/volumes'), 404, 'path-unknown'],
    ['with another method', upgradeRequest(bearer(agentToken('a')), '/agents', 'DELETE'), 404, 'path-unknown'],
    [
      'for another protocol',
      upgradeRequest({ ...bearer(agentToken('a')), upgrade: 'websocket' }),
      422,
      'agent-protocol-other',
    ],
    ['for a tunnel', 'CONNECT a:1 HTTP/1.1\r\n\r\n', 404, 'path-unknown'],
    ['for an unknown path', 'GET / HTTP/1.1\r\nconnection: close\r\n\r\n', 404, 'path-unknown'],
    ['that is not HTTP', 'nonsense\r\n\r\n', 400, 'request-malformed'],
    ['with long headers', `GET / HTTP/1.1\r\na: ${'x'.repeat(20_000)}\r\n\r\n`, 431, 'request-malformed'],
    [
      'with an Expect header',
      'GET / HTTP/1.1\r\nexpect: x\r\nconnection: close\r\n\r\n',
      417,
      'expectation-unsupported',
    ],
  ])('%s is refused', async (_, request, status, reason) => {
    const leader = await servers.startServer();
    const answer = await responseTo(leader, request);
    expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} .*application/problem\\+json`, 's'));
    expect(answer).toContain(`"reason":"${reason}"`);
    expect(leader.agents.nodes()).toEqual([]);
  });

  test('gets the answers of the request handler', async () => {
    const leader = await servers.startServer({ handle: (request, response) => response.end(`users, ${request.url}`) });
    expect(await responseTo(leader, 'GET /v1/volumes HTTP/1.1\r\nconnection: close\r\n\r\n')).toContain(
      'users, /v1/volumes',
    );
    expect(await responseTo(leader, upgradeRequest({}))).toContain('token-missing');
  });

  test('must use a current version of TLS', async () => {
    const leader = await servers.startServer();
    const old = connect({
      host: '127.0.0.1',
      port: leader.port,
      servername,
      ca: leader.credential.cert,
      minVersion: 'TLSv1',
      maxVersion: 'TLSv1.1',
      ciphers: 'DEFAULT@SECLEVEL=0',
    });
    onTestFinished(() => void old.destroy());
    await expect(once(old, 'secureConnect')).rejects.toThrow(/protocol|alert/i);
    await connectClient(leader, { maxVersion: 'TLSv1.2' });
  });

  test('that does not speak TLS is disconnected', async () => {
    const leader = await servers.startServer();
    const tcpSocket = connectTcp(leader.port, '127.0.0.1');
    onTestFinished(() => void tcpSocket.destroy());
    tcpSocket.on('error', () => undefined).resume();
    const ended = once(tcpSocket, 'close');
    tcpSocket.write('GET / HTTP/1.1\r\n\r\n');
    await ended;
  });

  test('gets a renewed certificate, while open connections stay', async () => {
    const leader = await servers.startServer({ handle: (_, response) => response.end('here') });
    const openConnection = await connectClient(leader);
    const renewed = createCredential(serverNames(testNamespace), Date.now());
    leader.tlsServer.setCredential(renewed);
    await expect(connectClient(leader)).rejects.toThrow();
    await connectClient({ ...leader, credential: renewed });
    openConnection.write('GET / HTTP/1.1\r\nconnection: close\r\n\r\n');
    expect(Buffer.concat(await Array.fromAsync(openConnection as AsyncIterable<Buffer>)).toString()).toContain('here');
  });
});
