import { once } from 'node:events';
import type { IncomingMessage, RequestListener } from 'node:http';
import { performServerHandshake } from 'node:http2';
import { duplexPair } from 'node:stream';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { LeaderServer } from '#testing/leader-servers.ts';
import { leaderServers, scopeOf, startCuttableProxy } from '#testing/leader-servers.ts';
import { createConnectedAgents } from './connected-agents.ts';

const servers = leaderServers();

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks = await Array.fromAsync(request as AsyncIterable<Buffer>);
  return Buffer.concat(chunks).toString('utf8');
}
/** An API that returns the request as its answer. */
const echoApi: RequestListener = (request, response) => {
  void bodyOf(request).then((body) => {
    const { method, url, headers } = request;
    response.writeHead(200, { 'content-type': 'application/json' });
    const { 'idempotency-key': key, prefer, host: authority } = headers;
    response.end(JSON.stringify({ method, url, body, key, prefer, authority }));
  });
};
const getRequest = (path = '/v1/status') => ({ method: 'GET', path }) as const;

async function startWithAgent(listener: RequestListener = echoApi, node = 'node-1'): Promise<LeaderServer> {
  const leader = await servers.startServer();
  servers.publishLeader(leader);
  servers.connectAgent({ node, api: listener });
  await eventually(() => leader.agents.nodes()).toEqual([node]);
  return leader;
}

describe('a connected agent', () => {
  test('receives requests and answers them', async () => {
    const { agents } = await startWithAgent();
    expect(await agents.call('node-1', getRequest('/v1/volumes?limit=5'), scopeOf())).toMatchObject({
      method: 'GET',
      url: '/v1/volumes?limit=5',
      body: '',
    });
    const change = { method: 'POST', path: '/v1/volumes', body: { name: 'é' }, requestId: 'claim-1' } as const;
    expect(await agents.call('node-1', change, scopeOf())).toMatchObject({
      method: 'POST',
      body: '{"name":"é"}',
      key: 'claim-1',
      prefer: 'answer-forgotten',
    });
    const path = '/v1/volumes/sv1-00000000-0000-4000-8000-000000000000';
    const deleted = await agents.call('node-1', { method: 'DELETE', path, requestId: 'delete:1' }, scopeOf());
    expect(deleted).toMatchObject({ method: 'DELETE', key: 'delete:1' });
    expect(deleted).not.toHaveProperty('prefer');
  });

  test('answers many concurrent requests, also with long answers', async () => {
    const { agents } = await startWithAgent((request, response) => {
      response.writeHead(200).end(JSON.stringify({ url: request.url, text: 'x'.repeat(200_000) }));
    });
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, i) => agents.call('node-1', getRequest(`/v1/volumes/${i}`), scopeOf())),
    );
    expect(answers.map((one) => (one as { readonly url: string }).url)).toEqual(
      answers.map((_, i) => `/v1/volumes/${i}`),
    );
  });

  test('reports the errors of its API, with control characters escaped', async () => {
    const { agents } = await startWithAgent((_, response) => {
      const problem = { code: 'in-use', reason: 'volume-mounted', detail: 'it is\u202emounted', action: 'Unmount it.' };
      response.writeHead(409, { 'content-type': 'application/problem+json' }).end(JSON.stringify(problem));
    });
    await expect(agents.call('node-1', getRequest(), scopeOf())).rejects.toMatchObject({
      code: 'in-use',
      reason: 'volume-mounted',
      message: 'it is\\u{202e}mounted',
      action: 'Unmount it.',
    });
  });

  test('answers a deletion without a body', async () => {
    const { agents } = await startWithAgent((_, response) => response.writeHead(204).end());
    expect(await agents.call('node-1', { method: 'DELETE', path: '/v1/volumes/a' }, scopeOf())).toBeUndefined();
  });

  test('whose API throws answers with an error', async () => {
    const leader = await servers.startServer();
    servers.publishLeader(leader);
    const api: RequestListener = () => {
      throw new Error('not yet');
    };
    servers.connectAgent({ api });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    await expect(leader.agents.call('node-1', getRequest(), scopeOf())).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'agent-not-serving',
    });
  });

  test.each([{ 'content-length': '100' }, {}])(
    'whose API truncates an answer reports an error instead: %j',
    async (headers) => {
      const { agents } = await startWithAgent((_, response) => {
        response.writeHead(200, headers).write('{"a":1}', () => response.destroy());
      });
      await expect(agents.call('node-1', getRequest(), scopeOf())).rejects.toMatchObject({
        reason: 'agent-not-serving',
      });
      expect(agents.nodes()).toEqual(['node-1']);
    },
  );

  test('is reported to subscribers until they unsubscribe', async () => {
    const leader = await servers.startServer();
    const agentChanges: string[] = [];
    leader.agents.follow(() => {
      throw new Error('not your concern');
    });
    const unsubscribe = leader.agents.follow((node) => agentChanges.push(`${node} ${leader.agents.nodes().length}`));
    servers.publishLeader(leader);
    const agent = servers.connectAgent({ api: echoApi });
    await eventually(() => agentChanges).toEqual(['node-1 1']);
    await agent[Symbol.asyncDispose]();
    await eventually(() => agentChanges).toEqual(['node-1 1', 'node-1 0']);
    unsubscribe();
    servers.connectAgent({ api: echoApi });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    expect(agentChanges).toHaveLength(2);
  });
});

test('a node’s connection that was requested last is used, although it was ready first', async () => {
  const agents = createConnectedAgents({ clock: systemClock(), log: silentLog() });
  onTestFinished(() => agents[Symbol.dispose]());
  const connections = ['early', 'late'].map((name, order) => {
    const [controllerEnd, agentEnd] = duplexPair();
    agents.accept('node-1', order, controllerEnd);
    const sendSettings = (): void => {
      const session = performServerHandshake(agentEnd);
      session.on('error', () => undefined).on('stream', (stream) => stream.end(`"${name}"`));
    };
    return { ready: sendSettings, ended: once(controllerEnd, 'close') };
  });
  const [firstRequested, lastRequested] = connections;
  lastRequested?.ready();
  await eventually(() => agents.nodes()).toEqual(['node-1']);
  firstRequested?.ready();
  await firstRequested?.ended;
  expect(await agents.call('node-1', getRequest(), scopeOf())).toBe('late');
});

describe('an agent that does not answer', () => {
  const silentApi: RequestListener = () => undefined;

  test('because it is not connected causes the error agent-absent', async () => {
    const { agents } = await startWithAgent();
    await expect(agents.call('node-2', getRequest(), scopeOf())).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'agent-absent',
      message: 'the agent of node node-2 is not connected',
    });
  });

  test('in time causes the error agent-no-answer', async () => {
    const { agents } = await startWithAgent(silentApi);
    await expect(agents.call('node-1', { ...getRequest(), deadlineMs: 50 }, scopeOf())).rejects.toMatchObject({
      code: 'deadline',
      reason: 'agent-no-answer',
    });
    expect(agents.nodes()).toEqual(['node-1']);
  });

  test('does not block a caller that aborts, and notices the abort', async () => {
    const [requestSeen, abortSeen] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const { agents } = await startWithAgent((request) => {
      request.once('close', () => abortSeen.resolve());
      requestSeen.resolve();
    });
    const caller = new AbortController();
    const pendingCall = agents.call('node-1', getRequest(), scopeOf(caller.signal));
    const why = new Error('gone');
    await requestSeen.promise;
    caller.abort(why);
    await expect(pendingCall).rejects.toBe(why);
    await expect(agents.call('node-1', getRequest(), scopeOf(caller.signal))).rejects.toBe(why);
    await abortSeen.promise;
  });

  test('because its connection ended causes the error agent-lost, and reconnects', async () => {
    const leader = await servers.startServer();
    const proxy = await startCuttableProxy(leader.port);
    servers.publishLeader(leader, proxy.port);
    const requestSeen = Promise.withResolvers<void>();
    servers.connectAgent({ api: () => requestSeen.resolve() });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    const pendingCall = leader.agents.call('node-1', getRequest(), scopeOf());
    await requestSeen.promise;
    proxy.cut();
    await expect(pendingCall).rejects.toMatchObject({ code: 'unavailable', reason: 'agent-lost' });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
  });

  test('because its connection was replaced causes the error agent-lost', async () => {
    const leader = await servers.startServer();
    servers.publishLeader(leader);
    const requestSeen = Promise.withResolvers<void>();
    const first = servers.connectAgent({ api: () => requestSeen.resolve() });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    const pendingCall = leader.agents.call('node-1', getRequest(), scopeOf());
    const agentChanges: string[] = [];
    onTestFinished(leader.agents.follow((node) => agentChanges.push(node)));
    await requestSeen.promise;
    servers.connectAgent({ api: echoApi });
    await expect(pendingCall).rejects.toMatchObject({ reason: 'agent-lost' });
    await first[Symbol.asyncDispose]();
    expect(await leader.agents.call('node-1', getRequest(), scopeOf())).toMatchObject({ url: '/v1/status' });
    expect(leader.agents.nodes()).toEqual(['node-1']);
  });

  test('because its connection stalls causes the error agent-lost within 20 s', async () => {
    const clock = createFakeClock();
    const leader = await servers.startServer({ clock });
    const proxy = await startCuttableProxy(leader.port);
    servers.publishLeader(leader, proxy.port);
    servers.connectAgent({ api: echoApi });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    // The agent answers, and the connection stays.
    for (let i = 0; i < 3; i++) {
      clock.advance(10_000);
      expect(await leader.agents.call('node-1', getRequest(), scopeOf())).toMatchObject({ url: '/v1/status' });
    }
    proxy.freeze();
    const pendingCall = leader.agents.call('node-1', { ...getRequest(), deadlineMs: 60_000 }, scopeOf());
    clock.advance(10_000);
    expect(leader.agents.nodes()).toEqual(['node-1']);
    clock.advance(10_000);
    await expect(pendingCall).rejects.toMatchObject({ reason: 'agent-lost' });
    await eventually(() => leader.agents.nodes()).toEqual([]);
  });
});
