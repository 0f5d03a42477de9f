import { once } from 'node:events';
import type { IncomingMessage, RequestListener } from 'node:http';
import { performServerHandshake } from 'node:http2';
import { duplexPair } from 'node:stream';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import { eventually } from '#testing/controller-fixture.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import type { OpenedServer } from '#testing/leader-servers.ts';
import { leaderServers, scopeOf, startCuttableProxy } from '#testing/leader-servers.ts';
import { createConnectedAgents } from './connected-agents.ts';

const it = leaderServers();

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks = await Array.fromAsync(request as AsyncIterable<Buffer>);
  return Buffer.concat(chunks).toString('utf8');
}
/** An API that answers with the request. */
const echo: RequestListener = (request, response) => {
  void bodyOf(request).then((body) => {
    const { method, url, headers } = request;
    response.writeHead(200, { 'content-type': 'application/json' });
    const { 'idempotency-key': key, prefer, host: authority } = headers;
    response.end(JSON.stringify({ method, url, body, key, prefer, authority }));
  });
};
const get = (path = '/v1/status') => ({ method: 'GET', path }) as const;

async function connected(listener: RequestListener = echo, node = 'node-1'): Promise<OpenedServer> {
  const leader = await it.open();
  it.lead(leader);
  it.link({ node, api: listener });
  await eventually(() => leader.agents.nodes()).toEqual([node]);
  return leader;
}

describe('a connected agent', () => {
  test('gets requests, and answers', async () => {
    const { agents } = await connected();
    expect(await agents.call('node-1', get('/v1/volumes?limit=5'), scopeOf())).toMatchObject({
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
    const end = await agents.call('node-1', { method: 'DELETE', path, requestId: 'delete:1' }, scopeOf());
    expect(end).toMatchObject({ method: 'DELETE', key: 'delete:1' });
    expect(end).not.toHaveProperty('prefer');
  });

  test('answers many concurrent requests, also with long answers', async () => {
    const { agents } = await connected((request, response) => {
      response.writeHead(200).end(JSON.stringify({ url: request.url, text: 'x'.repeat(200_000) }));
    });
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, i) => agents.call('node-1', get(`/v1/volumes/${i}`), scopeOf())),
    );
    expect(answers.map((one) => (one as { readonly url: string }).url)).toEqual(
      answers.map((_, i) => `/v1/volumes/${i}`),
    );
  });

  test('reports its errors unchanged', async () => {
    const { agents } = await connected((_, response) => {
      const problem = { code: 'in-use', reason: 'volume-mounted', detail: 'it is\u202emounted', action: 'Unmount it.' };
      response.writeHead(409, { 'content-type': 'application/problem+json' }).end(JSON.stringify(problem));
    });
    await expect(agents.call('node-1', get(), scopeOf())).rejects.toMatchObject({
      code: 'in-use',
      reason: 'volume-mounted',
      message: 'it is\\u{202e}mounted',
      action: 'Unmount it.',
    });
  });

  test('answers a deletion without a body', async () => {
    const { agents } = await connected((_, response) => response.writeHead(204).end());
    expect(await agents.call('node-1', { method: 'DELETE', path: '/v1/volumes/a' }, scopeOf())).toBeUndefined();
  });

  test('without its API answers with an error', async () => {
    const leader = await it.open();
    it.lead(leader);
    const api: RequestListener = () => {
      throw new Error('not yet');
    };
    it.link({ api });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    await expect(leader.agents.call('node-1', get(), scopeOf())).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'agent-not-serving',
    });
  });

  test.each([{ 'content-length': '100' }, {}])(
    'whose API breaks off in the middle of an answer has given none: %j',
    async (headers) => {
      const { agents } = await connected((_, response) => {
        response.writeHead(200, headers).write('{"a":1}', () => response.destroy());
      });
      await expect(agents.call('node-1', get(), scopeOf())).rejects.toMatchObject({ reason: 'agent-not-serving' });
      expect(agents.nodes()).toEqual(['node-1']);
    },
  );

  test('is reported to followers, as long as they follow', async () => {
    const leader = await it.open();
    const agentChanges: string[] = [];
    leader.agents.follow(() => {
      throw new Error('not your concern');
    });
    const end = leader.agents.follow((node) => agentChanges.push(`${node} ${leader.agents.nodes().length}`));
    it.lead(leader);
    const link = it.link({ api: echo });
    await eventually(() => agentChanges).toEqual(['node-1 1']);
    await link[Symbol.asyncDispose]();
    await eventually(() => agentChanges).toEqual(['node-1 1', 'node-1 0']);
    end();
    it.link({ api: echo });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    expect(agentChanges).toHaveLength(2);
  });
});

test('of two connections of a node the one requested last is used, although it was ready first', async () => {
  const agents = createConnectedAgents({ clock: systemClock(), log: silentLog() });
  onTestFinished(() => agents[Symbol.dispose]());
  const came = ['early', 'late'].map((name, order) => {
    const [here, there] = duplexPair();
    agents.accept('node-1', order, here);
    const ready = (): void => {
      const session = performServerHandshake(there);
      session.on('error', () => undefined).on('stream', (stream) => stream.end(`"${name}"`));
    };
    return { ready, ended: once(here, 'close') };
  });
  const [early, late] = came;
  late?.ready();
  await eventually(() => agents.nodes()).toEqual(['node-1']);
  early?.ready();
  await early?.ended;
  expect(await agents.call('node-1', get(), scopeOf())).toBe('late');
});

describe('an agent that does not answer', () => {
  const never: RequestListener = () => undefined;

  test('because it is not connected is absent', async () => {
    const { agents } = await connected();
    await expect(agents.call('node-2', get(), scopeOf())).rejects.toMatchObject({
      code: 'unavailable',
      reason: 'agent-absent',
      message: 'the agent of node node-2 is not connected',
    });
  });

  test('in time causes an error', async () => {
    const { agents } = await connected(never);
    await expect(agents.call('node-1', { ...get(), deadlineMs: 50 }, scopeOf())).rejects.toMatchObject({
      code: 'deadline',
      reason: 'agent-no-answer',
    });
    expect(agents.nodes()).toEqual(['node-1']);
  });

  test('does not block a caller that aborts, and sees the abort', async () => {
    const [asked, heard] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const { agents } = await connected((request) => {
      request.once('close', () => heard.resolve());
      asked.resolve();
    });
    const gone = new AbortController();
    const asking = agents.call('node-1', get(), scopeOf(gone.signal));
    const why = new Error('gone');
    await asked.promise;
    gone.abort(why);
    await expect(asking).rejects.toBe(why);
    await expect(agents.call('node-1', get(), scopeOf(gone.signal))).rejects.toBe(why);
    await heard.promise;
  });

  test('because its connection ended is lost, and reconnects', async () => {
    const leader = await it.open();
    const way = await startCuttableProxy(leader.port);
    it.lead(leader, way.port);
    const asked = Promise.withResolvers<void>();
    it.link({ api: () => asked.resolve() });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    const asking = leader.agents.call('node-1', get(), scopeOf());
    await asked.promise;
    way.cut();
    await expect(asking).rejects.toMatchObject({ code: 'unavailable', reason: 'agent-lost' });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
  });

  test('because its connection was replaced is lost', async () => {
    const leader = await it.open();
    it.lead(leader);
    const asked = Promise.withResolvers<void>();
    const first = it.link({ api: () => asked.resolve() });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    const asking = leader.agents.call('node-1', get(), scopeOf());
    const told: string[] = [];
    onTestFinished(leader.agents.follow((node) => told.push(node)));
    await asked.promise;
    it.link({ api: echo });
    await expect(asking).rejects.toMatchObject({ reason: 'agent-lost' });
    await first[Symbol.asyncDispose]();
    expect(await leader.agents.call('node-1', get(), scopeOf())).toMatchObject({ url: '/v1/status' });
    expect(leader.agents.nodes()).toEqual(['node-1']);
  });

  test('on a stalled connection is noticed within 20 s', async () => {
    const clock = createFakeClock();
    const leader = await it.open({ clock });
    const way = await startCuttableProxy(leader.port);
    it.lead(leader, way.port);
    it.link({ api: echo });
    await eventually(() => leader.agents.nodes()).toEqual(['node-1']);
    // The agent answers, and the connection stays.
    for (let i = 0; i < 3; i++) {
      clock.advance(10_000);
      expect(await leader.agents.call('node-1', get(), scopeOf())).toMatchObject({ url: '/v1/status' });
    }
    way.freeze();
    const asking = leader.agents.call('node-1', { ...get(), deadlineMs: 60_000 }, scopeOf());
    clock.advance(10_000);
    expect(leader.agents.nodes()).toEqual(['node-1']);
    clock.advance(10_000);
    await expect(asking).rejects.toMatchObject({ reason: 'agent-lost' });
    await eventually(() => leader.agents.nodes()).toEqual([]);
  });
});
