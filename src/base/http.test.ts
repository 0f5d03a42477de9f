import { once } from 'node:events';
import { mkdtempDisposable } from 'node:fs/promises';
import { Agent, createServer, type RequestListener } from 'node:http';
import { createServer as createTcpServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { DeadlineExceeded } from './clock.ts';
import {
  AnswerTooLarge,
  type HttpCall,
  httpFailure,
  pathWithQuery,
  readText,
  send,
  socketTarget,
  targetOf,
} from './http.ts';

const signal = new AbortController().signal;
const get = (path: string, more: Partial<HttpCall> = {}): HttpCall => ({
  method: 'GET',
  path,
  headers: {},
  agent: false,
  ...more,
});

async function serve(listener: RequestListener): Promise<string> {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-http-'));
  const socket = join(folder.path, 'socket');
  const server = createServer(listener).listen(socket);
  await once(server, 'listening');
  onTestFinished(async () => {
    server.closeAllConnections();
    server.close();
    await folder.remove();
  });
  return socket;
}

test('targetOf splits a URL into host, port and prefix', () => {
  expect(targetOf(new URL('https://[::1]/api/'))).toEqual({
    isSecure: true,
    endpoint: { host: '::1', port: 443 },
    prefix: '/api',
  });
  expect(targetOf(new URL('http://example.org:8080'))).toEqual({
    isSecure: false,
    endpoint: { host: 'example.org', port: 8080 },
    prefix: '',
  });
});

test('pathWithQuery omits parameters without a value', () => {
  expect(pathWithQuery('/a', { x: '1 2', y: undefined })).toBe('/a?x=1+2');
  expect(pathWithQuery('/a', { y: undefined })).toBe('/a');
});

test('sends a content-length with every method', async () => {
  const socket = await serve((request, response) => {
    request
      .resume()
      .on('end', () => response.end(`${request.headers['content-length']} ${request.headers['transfer-encoding']}`));
  });
  const answer = await send(socketTarget(socket), get('/', { method: 'DELETE', body: 'ä' }), signal);
  expect(await readText(answer, 100)).toBe('2 undefined');
});

test('throws if an answer is larger than the limit, and closes its connection', async () => {
  const ended = Promise.withResolvers<void>();
  const socket = await serve((request, response) => {
    request.socket.on('close', () => ended.resolve());
    response.write('x'.repeat(11));
  });
  const answer = await send(socketTarget(socket), get('/'), signal);
  const thrown: unknown = await readText(answer, 10).catch((cause: unknown) => cause);
  expect(thrown).toBeInstanceOf(AnswerTooLarge);
  expect(httpFailure(thrown, 'the server', signal)).toEqual({
    failure: 'garbled',
    why: 'the answer is larger than 10 bytes',
  });
  await ended.promise;
});

test.each([
  ['GET', 2],
  ['POST', 1],
])('a %s on an idle connection that the server has closed is sent %i times', async (method, times) => {
  let requests = 0;
  const socket = await serve((request, response) => {
    requests++;
    if (requests === 2) request.socket.destroy();
    else response.end('answered');
  });
  using agent = Object.assign(new Agent({ keepAlive: true, maxSockets: 1 }), {
    [Symbol.dispose]: () => agent.destroy(),
  });
  await readText(await send(socketTarget(socket), get('/', { agent }), signal), 100);
  const second = send(socketTarget(socket), get('/', { method, agent }), signal).then(
    (answer) => readText(answer, 100),
    (thrown: unknown) => httpFailure(thrown, 'the server', signal),
  );
  expect(await second).toEqual(
    method === 'GET' ? 'answered' : expect.objectContaining({ failure: 'lost', why: 'the server hung up' }),
  );
  expect(requests).toBe(1 + times);
});

test('a request that is queued for a connection is aborted with its signal', async () => {
  const socket = await serve(() => undefined);
  using agent = Object.assign(new Agent({ keepAlive: true, maxSockets: 1 }), {
    [Symbol.dispose]: () => agent.destroy(),
  });
  const first = send(socketTarget(socket), get('/', { agent }), signal).catch(() => 'over');
  const controller = new AbortController();
  const second = send(socketTarget(socket), get('/', { agent }), controller.signal);
  controller.abort(new DeadlineExceeded(5));
  const thrown: unknown = await second.catch((cause: unknown) => cause);
  expect(httpFailure(thrown, 'the server', controller.signal)).toMatchObject({
    failure: 'deadline',
    why: 'no answer within 5 ms',
  });
  agent.destroy();
  await first;
});

test('distinguishes an answer that is not HTTP from an unreachable server', async () => {
  const folder = await mkdtempDisposable(join(tmpdir(), 'stowage-http-'));
  const socket = join(folder.path, 'socket');
  const reason = (call: Promise<unknown>): Promise<unknown> =>
    call.catch((thrown: unknown) => httpFailure(thrown, 'the server', signal));
  expect(await reason(send(socketTarget(socket), get('/'), signal))).toMatchObject({ failure: 'unreachable' });
  const server = createTcpServer((connection) => connection.end('SSH-2.0\r\n\r\n')).listen(socket);
  await once(server, 'listening');
  onTestFinished(async () => {
    server.close();
    await folder.remove();
  });
  const garbled = await reason(send(socketTarget(socket), get('/'), signal));
  expect(garbled).toMatchObject({
    failure: 'garbled',
    why: expect.stringMatching(/^the answer is not HTTP \(Parse Error/),
  });
  expect(garbled).not.toHaveProperty('cause');
});
