import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { takeLastConnections } from '#base/accept-pending-connections.ts';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { patiently } from '#base/wait.ts';
import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { stoppingNow } from '#core/stopping.ts';
import {
  contentType,
  errorResponseFrom,
  httpError,
  overloaded,
  refuseExpectation,
  refuseUnparsable,
} from './error-response.ts';
import { methods, type PluginContext } from './methods.ts';
import { readPluginRequest } from './plugin-request.ts';
import { createUsedBytes } from './used-bytes.ts';

/** One of the two names by which engines know Stowage. It translates; what is true is in core. */
export interface PluginServer {
  /** To be listened with, on a socket that only the engines' user can open. */
  readonly server: Server;
  /**
   * Lets nobody connect any more, and answers whoever has. What only reads and takes long is ended soon, the rest after
   * `graceMs`.
   */
  close(graceMs: number): Promise<void>;
}

export interface PluginOptions {
  readonly core: Core;
  readonly plugin: PluginName;
  /** The names of options that the kinds of stores have, which users must not give. */
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
  /** Calls under way: more than engines ever make, and what a peer that never waits for an answer can make us do. */
  maxCalls: 1_000,
};

/** What only reads is answered while we stop: Docker takes a refusal of Get for a volume that is not there. */
const readGraceMs = 1_000;

interface ServerState extends PluginContext {
  readonly clock: Clock;
  readonly log: Log;
  /** Ends what only reads. */
  readonly stopping: AbortController;
  /** Ends everything. */
  readonly ending: AbortController;
  readonly mostCalls: number;
  calls: number;
}

/** Plain node:http: nine paths that are all posted to, whose answers a framework would only want to make its own. */
export function createPluginServer(options: PluginOptions): PluginServer {
  const { core, plugin, clock, log } = options;
  const { maxConnections, maxCalls: mostCalls, ...timeouts } = { ...defaultLimits, ...options.limits };
  const used = createUsedBytes(core, clock, log);
  const shared: ServerState = {
    core,
    plugin,
    clock,
    used,
    mostCalls,
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
      if (server.listening) await takeLastConnections(server);
      using _reading = clock.after(Math.min(graceMs, readGraceMs), () => shared.stopping.abort(stoppingNow()));
      await closeServer(server, graceMs, clock, () => shared.ending.abort(stoppingNow()));
      used[Symbol.dispose]();
      shared.stopping.abort(stoppingNow());
    },
  };
}

/** Never throws: whatever happens in here is answered. */
async function answer(shared: ServerState, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const path = (request.url ?? '').replace(/[?#].*$/s, '');
  try {
    send(response, 200, { ...(await handleRequest(shared, path, request)), Err: '' });
  } catch (thrown) {
    const { status, text, fullText: why, internal } = errorResponseFrom(thrown);
    const about = { method: path.slice(0, 64), status };
    if (internal) shared.log.error('a call of a container engine failed', { ...about, error: thrown });
    // Who asked was sent to the administrator, and the administrator here.
    else if (text !== why) shared.log.warn('a call of a container engine was refused', { ...about, why });
    else shared.log.info('a call of a container engine was refused', { ...about, why });
    if (status === 405) response.setHeader('allow', 'POST');
    send(response, status, { Err: text });
  }
}

async function handleRequest(shared: ServerState, path: string, request: IncomingMessage): Promise<object> {
  const { clock } = shared;
  const method = Object.hasOwn(methods, path) ? methods[path] : undefined;
  if (method === undefined) throw httpError(404);
  const parent = method.changes === true ? shared.ending.signal : shared.stopping.signal;
  // Who connected in time can still take too long to say what it wants.
  if (parent.aborted) throw stoppingNow();
  if (request.method !== 'POST') throw httpError(405);
  if (shared.calls >= shared.mostCalls) throw overloaded();
  shared.calls++;
  try {
    const message = await readPluginRequest(request);
    // Not ended when the engine hangs up. One that gave up waiting for a slow server asks again, and then finds it mounted;
    // if what it waited for were undone each time, it would never be. What nobody asks for again is found by holds.settle.
    using limit = clock.deadline(method.deadlineMs, parent);
    const call = { signal: limit.signal, log: shared.log, requestId: `docker:${randomUUID()}` };
    return await patiently(method.handle(shared, message, call), limit.signal, clock);
  } finally {
    shared.calls--;
  }
}

/**
 * Docker would keep the connection for good. One that is closed at the moment of its next call makes Docker repeat that with an
 * empty body; where none can be opened, it repeats all of it. So each is for one call.
 */
function send(response: ServerResponse, status: number, body: object): void {
  if (response.destroyed) return;
  const text = JSON.stringify(body);
  const about = { 'content-type': contentType, 'content-length': Buffer.byteLength(text) };
  response.writeHead(status, { ...about, connection: 'close' }).end(text);
}

async function closeServer(server: Server, graceMs: number, clock: Clock, cut: () => void): Promise<void> {
  if (!server.listening) return cut();
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  // Told to end, a call still answers; what does not even do that loses its connection.
  using _cut = clock.after(graceMs, cut);
  using _connections = clock.after(graceMs + 3_000, () => server.closeAllConnections());
  await promise;
  cut();
}
