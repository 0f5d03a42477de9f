import {
  Agent,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type RequestOptions,
} from 'node:http';
import {
  type IncomingHttpHeaders as IncomingHttp2Headers,
  performServerHandshake,
  type ServerHttp2Stream,
} from 'node:http2';
import { type Duplex, pipeline } from 'node:stream';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { agentCall } from './agent-calls.ts';
import { keepPinging } from './pings.ts';
import { pathUnknown, problemOf } from './problems.ts';

export interface Serving {
  readonly stream: Duplex;
  readonly clock: Clock;
  readonly log: Log;
  /** Of the REST API. */
  readonly socket: string;
}

/** At a time; the others wait at the controller. */
const maxCalls = 64;
const asked = ['accept', 'idempotency-key'];
const askedWithBody = [...asked, 'content-type', 'content-length'];
const answered = [
  'content-length',
  'content-type',
  'etag',
  'location',
  'preference-applied',
  'retry-after',
  'x-request-id',
];

/** Passes on what the controller asks, until the connection is lost or the signal ends it. Never throws. */
export async function serveLeader({ stream, clock, log, socket }: Serving, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const session = performServerHandshake(stream, {
    maxHeaderListPairs: 64,
    settings: { maxConcurrentStreams: maxCalls, maxHeaderListSize: 16 * 1024, enablePush: false },
  });
  session.on('error', (error) => log.debug('the connection to the controller failed', { error }));
  session.once('close', () => resolve());
  // Both ends of what is passed on are this process: a connection for each call would cost it more than most calls.
  const connections = new Agent({ keepAlive: true });
  session.on('stream', (call, headers) => passOn(call, headers, { socketPath: socket, agent: connections }));
  const stop = (): void => session.destroy();
  signal.addEventListener('abort', stop, { once: true });
  if (signal.aborted) stop();
  using _ = keepPinging(session, clock, () => log.warn('the controller does not answer any more'));
  await promise;
  signal.removeEventListener('abort', stop);
  stream.destroy();
  connections.destroy();
}

/** The way to the REST API. */
type Way = Readonly<Pick<RequestOptions, 'socketPath' | 'agent'>>;

function passOn(call: ServerHttp2Stream, headers: IncomingHttp2Headers, way: Way): void {
  // Whatever it is, it ends the call; what is said about it is said elsewhere.
  call.on('error', () => undefined);
  try {
    ask(call, headers, way);
  } catch (cause) {
    // HTTP/1 cannot say everything that HTTP/2 can.
    refuse(call, unpassable(cause));
  }
}

function ask(call: ServerHttp2Stream, headers: IncomingHttp2Headers, way: Way): void {
  const { ':path': path = '', ':method': method = '' } = headers;
  // To whoever can open the socket the API gives all that there is; of that a controller has what it needs.
  const known = agentCall(method, path);
  if (known === undefined) {
    refuse(call, pathUnknown());
    return;
  }
  const isBare = known.bare === true;
  const taken = chosen(headers, isBare ? asked : askedWithBody);
  const to = httpRequest({ ...way, path, method, headers: taken });
  call.once('close', () => to.destroy());
  to.on('error', (cause) => refuse(call, unserved(cause)));
  to.on('response', (answer) => passBack(call, answer));
  if (isBare) {
    call.resume();
    to.end();
    return;
  }
  // Its errors are those of either end, which are heard above.
  pipeline(call, to, () => undefined);
}

function passBack(call: ServerHttp2Stream, answer: IncomingMessage): void {
  if (call.destroyed || call.headersSent) {
    answer.destroy();
    return;
  }
  call.respond({ ':status': answer.statusCode ?? 502, ...chosen(answer.headers, answered) });
  pipeline(answer, call, (error) => {
    // Cut off is not ended: the other side must not take it for the whole, which `close` would look like.
    if (error !== undefined && error !== null) call.destroy(error);
  });
}

function refuse(call: ServerHttp2Stream, error: StowageError): void {
  if (call.destroyed) return;
  if (call.headersSent) {
    call.destroy(error);
    return;
  }
  const { status, headers, body } = problemOf(error);
  call.respond({ ':status': status, ...headers });
  call.end(body);
}

function chosen(
  headers: IncomingHttpHeaders | IncomingHttp2Headers,
  names: readonly string[],
): Record<string, string | string[]> {
  return Object.fromEntries(names.flatMap((name) => (headers[name] === undefined ? [] : [[name, headers[name]]])));
}

const unpassable = (cause: unknown): StowageError =>
  new StowageError('the request cannot be passed on', {
    code: 'invalid',
    reason: 'request-malformed',
    cause,
    action: 'Send an address and headers that HTTP/1.1 can have.',
  });

const unserved = (cause: unknown): StowageError =>
  new StowageError('the agent does not serve its API at the moment', {
    code: 'unavailable',
    reason: 'agent-not-serving',
    cause,
    action: "Try again in a moment. If it persists, look at that agent's log.",
  });
