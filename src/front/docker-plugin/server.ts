import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { acceptPendingConnections } from '#base/accept-pending-connections.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { waitWithGrace } from '#base/wait.ts';
import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { stoppingError } from '#core/stopping-error.ts';
import {
  contentType,
  errorResponseFrom,
  httpError,
  overloadedError,
  refuseExpectation,
  refuseUnparsable,
} from './error-response.ts';
import { methods, type PluginContext } from './methods.ts';
import { readPluginRequest } from './plugin-request.ts';
import { createUsedBytes } from './used-bytes.ts';

/** The server of one of Stowage's two plugin names. It only translates requests to calls of core. */
export interface PluginServer {
  /** Must listen on a socket that only the engines' user can open. */
  readonly server: Server;
  /** Accepts no new connections and answers the open ones. Cancels slow reads soon, other calls after `graceMs`. */
  close(graceMs: number): Promise<void>;
}

export interface PluginOptions {
  readonly core: Core;
  readonly plugin: PluginName;
  /** The option names of all store kinds. Users of engines must not set them. */
  readonly storeOptions: ReadonlySet<string>;
  readonly clock: Clock;
  readonly log: Log;
  readonly limits?: Partial<typeof defaultLimits>;
}

const defaultLimits = {
  headersTimeout: 10_000,
  requestTimeout: 20_000,
  connectionsCheckingInterval: 5_000,
  maxConnections: 2_000,
  /** Calls in flight: more than engines ever make. Limits what a peer that does not wait for answers can start. */
  maxCalls: 1_000,
};

/** Reads are still answered while the server stops: to Docker, an error from Get means that the volume does not exist. */
const readGraceMs = 1_000;

interface ServerState extends PluginContext {
  readonly clock: Clock;
  readonly log: Log;
  /** Cancels reads. */
  readonly stopping: AbortController;
  /** Cancels all calls. */
  readonly ending: AbortController;
  readonly maxCalls: number;
  calls: number;
}

/** Plain node:http: the protocol has nine POST paths, and a framework would change the answers. */
export function createPluginServer(options: PluginOptions): PluginServer {
  const { core, plugin, clock, log } = options;
  const { maxConnections, maxCalls, ...timeouts } = { ...defaultLimits, ...options.limits };
  const used = createUsedBytes(core, clock, log);
  const shared: ServerState = {
    core,
    plugin,
    clock,
    used,
    maxCalls,
    calls: 0,
    log: log.with({ plugin }),
    isStoreOption: (option) => options.storeOptions.has(option),
    stopping: new AbortController(),
    ending: new AbortController(),
  };
  const server = createServer({ ...timeouts, maxHeaderSize: 16 * 1024, requireHostHeader: false });
  server.maxConnections = maxConnections;
  server.on('request', (request, response) => void answer(shared, request, response));
  server.on('clientError', refuseUnparsable).on('checkExpectation', refuseExpectation);
  return {
    server,
    close: async (graceMs) => {
      if (server.listening) await acceptPendingConnections(server);
      using _reading = clock.after(Math.min(graceMs, readGraceMs), () => shared.stopping.abort(stoppingError()));
      await closeServer(server, graceMs, clock, () => shared.ending.abort(stoppingError()));
      used[Symbol.dispose]();
      shared.stopping.abort(stoppingError());
    },
  };
}

/** Never throws: every error becomes an answer. */
async function answer(shared: ServerState, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const path = (request.url ?? '').replace(/[?#].*$/s, '');
  try {
    send(response, 200, { ...(await handleRequest(shared, path, request)), Err: '' });
  } catch (thrown) {
    const { status, text, fullText: why, internal } = errorResponseFrom(thrown);
    const fields = { method: path.slice(0, 64), status };
    if (internal) shared.log.error('plugin call failed', { ...fields, error: thrown });
    // The answer hides details from the user. The administrator finds them in this log entry.
    else if (text !== why) shared.log.warn('plugin call was rejected', { ...fields, why });
    else shared.log.info('plugin call was rejected', { ...fields, why });
    if (status === 405) response.setHeader('allow', 'POST');
    send(response, status, { Err: text });
  }
}

async function handleRequest(shared: ServerState, path: string, request: IncomingMessage): Promise<object> {
  const { clock } = shared;
  const method = Object.hasOwn(methods, path) ? methods[path] : undefined;
  if (method === undefined) throw httpError(404);
  const parent = method.changes === true ? shared.ending.signal : shared.stopping.signal;
  // A client that connected before the stop may send its request too late.
  if (parent.aborted) throw stoppingError();
  if (request.method !== 'POST') throw httpError(405);
  if (shared.calls >= shared.maxCalls) throw overloadedError();
  shared.calls++;
  try {
    const message = await readPluginRequest(request);
    // Not cancelled when the engine hangs up: an engine that timed out on a slow server retries, and must find the progress of its first call.
    // Otherwise the mount would never succeed. engineMounts.reconcile removes mounts that no engine asks for again.
    using limit = clock.deadline(method.deadlineMs, parent);
    const call = { signal: limit.signal, log: shared.log, requestId: `docker:${randomUUID()}` };
    return await waitWithGrace(method.handle(shared, message, call), limit.signal, clock);
  } finally {
    shared.calls--;
  }
}

/**
 * Each connection serves one call, since Docker would keep it open forever. If a kept connection is closed just as Docker sends the next
 * call, Docker retries the call with an empty body. If it can't open a connection, it retries the whole call.
 */
function send(response: ServerResponse, status: number, body: object): void {
  if (response.destroyed) return;
  const text = JSON.stringify(body);
  const headers = { 'content-type': contentType, 'content-length': Buffer.byteLength(text) };
  response.writeHead(status, { ...headers, connection: 'close' }).end(text);
}

async function closeServer(server: Server, graceMs: number, clock: Clock, cancelCalls: () => void): Promise<void> {
  if (!server.listening) return cancelCalls();
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  // A cancelled call still answers. If it does not, its connection is cut 3 s later.
  using _cut = clock.after(graceMs, cancelCalls);
  using _connections = clock.after(graceMs + 3_000, () => server.closeAllConnections());
  await promise;
  cancelCalls();
}
