import type { OutgoingHttpHeaders, RequestListener } from 'node:http';
import {
  type IncomingHttpHeaders as IncomingHttp2Headers,
  performServerHandshake,
  type ServerHttp2Stream,
} from 'node:http2';
import { type Duplex, Readable } from 'node:stream';
import { finished, pipeline } from 'node:stream/promises';
import { type InjectOptions, inject } from 'light-my-request';
import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { pathUnknown, problemOf } from '../problems.ts';
import { findAgentCall } from './agent-calls.ts';
import { keepPinging } from './pings.ts';

export interface ServeLeaderOptions {
  readonly stream: Duplex;
  readonly clock: Clock;
  readonly log: Log;
  /** The REST API, with the permissions of the owner of its socket. */
  readonly api: RequestListener;
}

/** The limit of concurrent calls; further ones wait at the controller. */
const maxConcurrentCalls = 64;
const requestHeaders = ['accept', 'idempotency-key'];
const requestHeadersWithBody = [...requestHeaders, 'content-type'];
const responseHeaders = [
  'content-length',
  'content-type',
  'etag',
  'location',
  'preference-applied',
  'retry-after',
  'x-request-id',
];

/** Larger than any request of a controller, and the limit of the API. */
const maxBodyBytes = 64 * 1024;
const bodyTimeoutMs = 30_000;
const chunkBytes = 16 * 1024;
/** Created once: an Error with its stack for each call would cost more than most calls. */
const callerGone = new Error('the caller no longer waits for the answer');

/** Forwards the controller's requests to the API, until the connection is lost or the signal aborts. Never throws. */
export async function serveLeader({ stream, clock, log, api }: ServeLeaderOptions, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const session = performServerHandshake(stream, {
    maxHeaderListPairs: 64,
    settings: { maxConcurrentStreams: maxConcurrentCalls, maxHeaderListSize: 16 * 1024, enablePush: false },
  });
  session.on('error', (error) => log.debug('the connection to the controller failed', { error }));
  session.once('close', () => resolve());
  session.on('stream', (call, headers) => void forwardRequest(call, headers, { api, clock, log }));
  using _stop = onAbort(signal, () => session.destroy());
  using _pings = keepPinging(session, clock, () => log.warn('the controller stopped answering'));
  await promise;
  stream.destroy();
}

/** Calls the API within this process: going through its socket would cost more than most calls themselves. */
async function forwardRequest(
  call: ServerHttp2Stream,
  headers: IncomingHttp2Headers,
  { api, clock, log }: Omit<ServeLeaderOptions, 'stream'>,
): Promise<void> {
  // An error ends the call, and is logged elsewhere.
  call.on('error', () => undefined);
  const { ':path': path = '', ':method': method = '' } = headers;
  // The API grants the owner of its socket all permissions. A controller may use only the calls in the table.
  const agentCall = findAgentCall(method, path);
  if (agentCall === undefined) {
    refuse(call, pathUnknown());
    return;
  }
  try {
    const payload = method === 'GET' ? undefined : await bodyOf(call, clock);
    if (method === 'GET') call.resume();
    const isWithoutBody = payload === undefined || agentCall.body?.test(String(payload)) === false;
    const forwardedHeaders = pickHeaders(headers, isWithoutBody ? requestHeaders : requestHeadersWithBody);
    if (agentCall.answerForgotten === true) forwardedHeaders['prefer'] = 'answer-forgotten';
    const forwarded = { method: agentCall.method, url: path, headers: forwardedHeaders };
    await answer(call, isWithoutBody ? forwarded : { ...forwarded, payload }, api);
  } catch (cause) {
    if (!call.closed) log.warn('a request of the controller failed', { call: `${method} ${path}`, error: cause });
    refuse(call, apiFailed(cause));
  }
}

async function answer(call: ServerHttp2Stream, request: InjectOptions, api: RequestListener): Promise<void> {
  const { statusCode, headers, rawPayload } = await abortOnClose(call, (signal) => inject(api, { ...request, signal }));
  if (call.destroyed || call.closed || call.headersSent) return;
  call.respond({ ':status': statusCode, ...pickHeaders(headers, responseHeaders) });
  // Send a large answer in chunks, so that flow control bounds what is buffered.
  if (rawPayload.length === 0) call.end();
  else if (rawPayload.length <= chunkBytes) call.end(rawPayload);
  else await pipeline(Readable.from(chunksOf(rawPayload)), call);
}

/** Aborts the wait for the answer when the caller hangs up. A change that has started still completes. */
async function abortOnClose<T>(call: ServerHttp2Stream, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const ending = new AbortController();
  const end = (): void => ending.abort(callerGone);
  call.once('close', end);
  try {
    return await work(ending.signal);
  } finally {
    call.off('close', end);
  }
}

function* chunksOf(payload: Buffer): Generator<Buffer, void, undefined> {
  for (let start = 0; start < payload.length; start += chunkBytes) yield payload.subarray(start, start + chunkBytes);
}

/** Reads at most one byte more than the limit, which is enough for the API to refuse the request. */
async function bodyOf(call: ServerHttp2Stream, clock: Clock): Promise<Buffer> {
  const parts: Buffer[] = [];
  let remainingBytes = maxBodyBytes + 1;
  const { promise: limitReached, resolve } = Promise.withResolvers<void>();
  call.on('data', (part: Buffer) => {
    if (remainingBytes > 0) parts.push(part.subarray(0, remainingBytes));
    remainingBytes -= part.length;
    if (remainingBytes <= 0) resolve();
  });
  const timeout = new AbortController();
  using _ = clock.after(bodyTimeoutMs, () => timeout.abort(new DeadlineExceeded(bodyTimeoutMs)));
  await Promise.race([limitReached, finished(call, { writable: false, signal: timeout.signal })]);
  return Buffer.concat(parts);
}

function refuse(call: ServerHttp2Stream, error: StowageError): void {
  if (call.destroyed || call.closed) return;
  if (call.headersSent) {
    call.destroy(error);
    return;
  }
  const { status, headers, body } = problemOf(error);
  call.respond({ ':status': status, ...headers });
  call.end(body);
}

function pickHeaders(
  headers: OutgoingHttpHeaders | IncomingHttp2Headers,
  names: readonly string[],
): Record<string, string | string[]> {
  const found: Record<string, string | string[]> = {};
  for (const name of names) {
    const { [name]: value } = headers;
    if (value !== undefined) found[name] = typeof value === 'number' ? String(value) : value;
  }
  return found;
}

const apiFailed = (cause: unknown): StowageError =>
  new StowageError('the agent does not serve its API at the moment', {
    code: 'unavailable',
    reason: 'agent-not-serving',
    cause,
    action: "Try again in a moment. If the problem persists, check that agent's log.",
  });
