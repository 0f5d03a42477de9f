import { afterEach, describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { type Script, type ScriptedEngine, startScriptedEngine } from '#testbed/scripted-engine.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createDockerClient, type DockerClient } from './client.ts';
import { DockerError } from './errors.ts';

const { signal } = new AbortController();
const pollOptions = { timeout: 10_000 };
let resources: (AsyncDisposable | Disposable)[] = [];

afterEach(async () => {
  for (const one of resources.reverse()) {
    if (Symbol.asyncDispose in one) await one[Symbol.asyncDispose]();
    else one[Symbol.dispose]();
  }
  resources = [];
});

async function startScripted(
  script: Script,
  clock = systemClock(),
): Promise<{ engine: ScriptedEngine; client: DockerClient }> {
  const engine = await startScriptedEngine(script);
  const client = createDockerClient({ socket: engine.socket, clock });
  resources.push(engine, client);
  return { engine, client };
}

const answerWith =
  (value: unknown, status = 200): Script =>
  (_path, request, response) => {
    request.resume().on('end', () => response.writeHead(status).end(JSON.stringify(value)));
  };

/** Awaits a failure and returns its kind, message and status. */
async function failure(work: Promise<unknown>): Promise<{ failure: string; message: string; status: number }> {
  const thrown: unknown = await work.then(
    () => 'it did not fail',
    (error: unknown) => error,
  );
  if (!(thrown instanceof DockerError)) throw new Error('not a DockerError', { cause: thrown });
  return { failure: thrown.failure, message: thrown.message, status: thrown.status };
}

describe('calls that wait for a free connection', () => {
  /** Does not answer calls whose path has this ending. */
  const silentFor =
    (end: string): Script =>
    (path, request, response) => {
      if (!path.endsWith(end)) answerWith({})(path, request, response);
    };

  test('end with their signal', async () => {
    const { engine, client } = await startScripted(silentFor('/start'));
    const stop = new AbortController();
    const calls = Array.from({ length: 8 }, (_, at) => client.startContainer(`c${at}`, stop.signal));
    const all = Promise.allSettled(calls);
    await expect.poll(() => engine.requests.length, pollOptions).toBe(8);
    const one = new AbortController();
    const waiting = failure(client.startContainer('last', one.signal));
    one.abort();
    expect(await waiting).toMatchObject({ failure: 'canceled' });
    stop.abort();
    await all;
    expect(engine.requests).toHaveLength(8);
  });

  test('are not blocked by calls that wait for a container to end', async () => {
    const { engine, client } = await startScripted(silentFor('/wait'));
    const stop = new AbortController();
    const all = Promise.allSettled(Array.from({ length: 9 }, (_, at) => client.waitContainer(`c${at}`, stop.signal)));
    await expect.poll(() => engine.requests.length, pollOptions).toBe(9);
    await client.startContainer('c', signal);
    stop.abort();
    await all;
  });
});

describe('the API version', () => {
  test.each([
    ['1.41', '1.12', '/v1.41/info'],
    ['1.43', '1.24', '/v1.41/info'],
    // The engine no longer supports our version.
    ['1.52', '1.44', '/v1.44/info'],
  ])('for an engine that supports up to %s and at least %s is in the path', async (ApiVersion, MinAPIVersion, path) => {
    const { engine, client } = await startScripted(answerWith({}));
    engine.version = { Version: 'x', ApiVersion, MinAPIVersion };
    await client.info(signal);
    await client.info(signal);
    expect(engine.requests).toEqual([`GET ${path}`, `GET ${path}`]);
  });

  test('of an engine that is too old is an error', async () => {
    const { engine, client } = await startScripted(answerWith({}));
    engine.version = { Version: '18.09', ApiVersion: '1.39', MinAPIVersion: '1.12' };
    expect(await failure(client.info(signal))).toMatchObject({
      failure: 'refused',
      message: 'GET /version: version 18.09 speaks API 1.39, and 1.41 is needed (Docker 20.10, Podman 4)',
    });
  });

  test('is negotiated again when the engine was replaced', async () => {
    const { engine, client } = await startScripted(answerWith({}));
    await client.info(signal);
    await engine.stop();
    expect(await failure(client.info(signal))).toMatchObject({ failure: 'unreachable' });
    engine.version = { Version: '29.0', ApiVersion: '1.52', MinAPIVersion: '1.44' };
    await engine.start();
    await client.info(signal);
    expect(engine.requests.at(-1)).toBe('GET /v1.44/info');
  });

  test('is negotiated again when the engine reports that it is too old', async () => {
    const { engine, client } = await startScripted((path, request, response) => {
      if (request.url?.startsWith('/v1.41') === true)
        answerWith({ message: 'client version 1.41 is too old. Minimum supported API version is 1.44' }, 400)(
          path,
          request,
          response,
        );
      else answerWith({})(path, request, response);
    });
    expect(await failure(client.info(signal))).toMatchObject({ failure: 'refused', status: 400 });
    engine.version = { Version: '29.0', ApiVersion: '1.52', MinAPIVersion: '1.44' };
    await client.info(signal);
  });

  test('is not put into a path if it is malformed', async () => {
    const { engine, client } = await startScripted(answerWith({}));
    engine.version = { Version: 'x', ApiVersion: '1.41/../x', MinAPIVersion: '1.12' };
    expect(await failure(client.info(signal))).toMatchObject({ failure: 'garbled' });
    expect(engine.requests).toEqual([]);
  });
});

describe('a DockerError is thrown when', () => {
  test('nothing listens on the socket', async () => {
    using client = createDockerClient({ socket: '/nowhere/engine.sock', clock: systemClock() });
    expect(await failure(client.ping(signal))).toEqual({
      failure: 'unreachable',
      message: 'GET /_ping: connect ENOENT /nowhere/engine.sock',
      status: 0,
    });
  });

  test.each([
    [{ message: 'No such container: x' }, 'No such container: x'],
    [
      { cause: 'gone', message: 'no container with name or ID "x" found', response: 404 },
      'no container with name or ID "x" found',
    ],
    ['plain words', '"plain words"'],
  ])('the engine returns an error: %j', async (said, message) => {
    const { client } = await startScripted(answerWith(said, 404));
    expect(await failure(client.container('x', signal))).toEqual({
      failure: 'refused',
      message: `GET /containers/x/json: ${message}`,
      status: 404,
    });
  });

  test('the response is not JSON', async () => {
    const { client } = await startScripted((_path, _request, response) => response.end('<html>'));
    expect(await failure(client.containers(signal))).toMatchObject({
      failure: 'garbled',
      message: 'GET /containers/json: the answer is not JSON',
    });
  });

  test('the response is not HTTP', async () => {
    const { client } = await startScripted((_path, _request, response) => response.socket?.end('220 mail ready\r\n'));
    expect(await failure(client.info(signal))).toMatchObject({ failure: 'garbled' });
  });

  test.each([
    [[{ Names: ['/x'], State: 'running' }], '[0].Id is missing'],
    [[{ Id: 'x', Names: 'x', State: 'running' }], '[0].Names is not a list of texts'],
    [[{ Id: 'x', Names: ['/x', 3], State: 'running' }], '[0].Names is not a list of texts'],
    [[{ Id: 'x', State: 'running', Mounts: [{ Type: 3 }] }], '[0].Mounts[0].Type is not a text'],
    [[{ Id: 'x', State: 'running', Labels: { a: 1 } }], '[0].Labels is not a map of texts'],
    [[null], '[0] is not an object'],
    [{}, 'the answer is not a list'],
  ])('the response violates the API: %j', async (answer, why) => {
    const { client } = await startScripted(answerWith(answer));
    expect(await failure(client.containers(signal))).toMatchObject({
      failure: 'garbled',
      message: `GET /containers/json: ${why}`,
    });
  });

  test('the connection breaks during the response', async () => {
    const { client } = await startScripted((_path, _request, response) => {
      response.writeHead(200, { 'content-length': 100 });
      response.write('[{"Id":', () => response.socket?.destroy());
    });
    expect(await failure(client.containers(signal))).toMatchObject({
      failure: 'lost',
      message: 'GET /containers/json: the engine hung up',
    });
  });

  test('the response is longer than the limit', async () => {
    const { client } = await startScripted((_path, _request, response) => {
      const chunk = Buffer.alloc(1 << 16, ' ');
      const more = (): void => void (response.writable && response.write(chunk, more));
      more();
    });
    expect(await failure(client.info(signal))).toMatchObject({
      failure: 'garbled',
      message: 'GET /info: the answer is larger than 1048576 bytes',
    });
  });

  test('the engine does not answer', async () => {
    const clock = createFakeClock();
    const received = Promise.withResolvers<void>();
    const { client } = await startScripted(() => received.resolve(), clock);
    const timedOut = failure(client.info(signal));
    await received.promise;
    clock.advance(10_000);
    expect(await timedOut).toMatchObject({ failure: 'deadline', message: 'GET /info: no answer within 10000 ms' });
  });

  test('the engine stops in the middle of a response', async () => {
    const clock = createFakeClock();
    const received = Promise.withResolvers<void>();
    const { client } = await startScripted(
      (_path, _request, response) => void response.write('{', () => received.resolve()),
      clock,
    );
    const timedOut = failure(client.info(signal));
    await received.promise;
    clock.advance(10_000);
    expect(await timedOut).toMatchObject({ failure: 'deadline' });
  });

  test('the caller cancels', async () => {
    const caller = new AbortController();
    const { client } = await startScripted(() => caller.abort());
    expect(await failure(client.info(caller.signal))).toMatchObject({ failure: 'canceled' });
    expect(await failure(client.info(caller.signal))).toMatchObject({ failure: 'canceled' });
  });
});

describe('connections', () => {
  test('closed by the engine while idle are not used again', async () => {
    const { engine, client } = await startScripted(answerWith({}));
    await client.info(signal);
    await engine.stop();
    await engine.start();
    await client.info(signal);
    expect(engine.requests).toHaveLength(2);
  });

  test('closed by the engine during a call are retried for GET only', async () => {
    let answersNext = true;
    const { engine, client } = await startScripted((path, request, response) => {
      if (answersNext) answerWith({})(path, request, response);
      else response.socket?.destroy();
      answersNext = !answersNext;
    });
    await client.info(signal);
    await client.info(signal);
    expect(engine.requests).toHaveLength(3);
    answersNext = false;
    expect(await failure(client.startContainer('x', signal))).toMatchObject({ failure: 'lost' });
    expect(engine.requests).toHaveLength(4);
  });

  test('are limited to eight', async () => {
    let maxWaiting = 0;
    const waiting: (() => void)[] = [];
    const { client } = await startScripted((path, request, response) => {
      waiting.push(() => answerWith({})(path, request, response));
      maxWaiting = Math.max(maxWaiting, waiting.length);
    });
    const all = Promise.all(Array.from({ length: 40 }, () => client.info(signal)));
    let done = false;
    void all.then(() => {
      done = true;
    });
    await expect.poll(() => waiting.length).toBe(8);
    while (!done) {
      waiting.shift()?.();
      await new Promise(setImmediate);
    }
    expect(maxWaiting).toBe(8);
  });
});

describe('events', () => {
  const event = (Action: string): string => `${JSON.stringify({ Type: 'container', Action, Actor: { ID: 'x' } })}\n`;

  test('arrive complete and in order, from the requested time', async () => {
    const { engine, client } = await startScripted((_path, _request, response) => {
      const text = event('create') + event('start');
      response.write(text.slice(0, 30));
      response.write(text.slice(30, 100));
      response.end(`${text.slice(100)}\n`);
    });
    const actions: string[] = [];
    for await (const { action, id } of await client.events({ types: ['container'], since: 17_002 }, signal))
      actions.push(id + action);
    expect(actions).toEqual(['xcreate', 'xstart']);
    expect(decodeURIComponent(engine.requests[0] ?? '')).toBe(
      'GET /v1.41/events?filters={"type":["container"]}&since=17.002',
    );
  });

  const readEvents = async (client: DockerClient, until = signal): Promise<void> => {
    for await (const _ of await client.events({ types: ['container'] }, until));
  };

  test('fail when the connection breaks', async () => {
    const { client } = await startScripted((_path, _request, response) => {
      response.write(event('create'), () => response.socket?.destroy());
    });
    expect(await failure(readEvents(client))).toMatchObject({ failure: 'lost' });
  });

  test('fail when they are not JSON', async () => {
    const { client } = await startScripted((_path, _request, response) => response.end('what?\n'));
    expect(await failure(readEvents(client))).toMatchObject({ failure: 'garbled' });
  });

  test('fail when a line is too long', async () => {
    const { client } = await startScripted((_path, _request, response) => {
      const chunk = Buffer.alloc(1 << 16, 'x');
      const more = (): void => void (response.writable && response.write(chunk, more));
      more();
    });
    expect(await failure(readEvents(client))).toMatchObject({
      failure: 'garbled',
      message: 'GET /events: a line is longer than 1048576 bytes',
    });
  });

  test('time out before the response header, but not after it', async () => {
    const clock = createFakeClock();
    let received = Promise.withResolvers<void>();
    const { engine, client } = await startScripted(() => received.resolve(), clock);
    const timedOut = failure(readEvents(client));
    await received.promise;
    clock.advance(10_000);
    expect(await timedOut).toMatchObject({ failure: 'deadline' });

    received = Promise.withResolvers<void>();
    engine.script = (_path, _request, response) => {
      response.flushHeaders();
      received.promise.then(
        () => response.end(event('create')),
        () => undefined,
      );
    };
    const stream = await client.events({ types: ['container'] }, signal);
    clock.advance(1_000_000);
    received.resolve();
    expect((await stream.next()).value).toMatchObject({ action: 'create' });
  });

  test('end, and close their connection, when the caller cancels', async () => {
    const caller = new AbortController();
    const closed = Promise.withResolvers<void>();
    const { client } = await startScripted((_path, _request, response) => {
      response.on('close', () => closed.resolve());
      response.write(event('create'));
    });
    const stream = await client.events({ types: ['container'] }, caller.signal);
    await stream.next();
    caller.abort();
    expect(await failure(stream.next())).toMatchObject({ failure: 'canceled' });
    await closed.promise;
  });

  test("fail with the engine's message", async () => {
    const { client } = await startScripted(answerWith({ message: 'no events today' }, 500));
    expect(await failure(readEvents(client))).toEqual({
      failure: 'refused',
      message: 'GET /events: no events today',
      status: 500,
    });
  });
});

test('a status of 304 counts as success', async () => {
  const { client } = await startScripted((_path, _request, response) => response.writeHead(304).end());
  await client.startContainer('x', signal);
});

test('names are escaped in paths', async () => {
  const { engine, client } = await startScripted(answerWith({ Id: 'x' }));
  await client.removeContainer('a/../b?c', signal);
  await client.image('registry:5000/team/stowage:1', signal);
  expect(engine.requests).toEqual([
    'DELETE /v1.41/containers/a%2F..%2Fb%3Fc?force=1&v=1',
    'GET /v1.41/images/registry%3A5000/team/stowage%3A1/json',
  ]);
});

test('loading an image fails if the stream reports an error despite status 200', async () => {
  const { client } = await startScripted((_path, request, response) => {
    request.resume().on('end', () => response.end('{"stream":"Loading"}\n{"error":"unexpected EOF"}\n'));
  });
  async function* tar(): AsyncGenerator<Uint8Array> {
    yield Buffer.from('not a tar');
  }
  expect(await failure(client.loadImage(tar(), signal))).toMatchObject({
    failure: 'refused',
    message: 'POST /images/load: unexpected EOF',
  });
});
