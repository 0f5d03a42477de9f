import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import fastify, { type FastifyInstance } from 'fastify';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import { stoppingError } from '#core/stopping-error.ts';
import { eventsRight, metricsRight } from './access.ts';
import { type Admission, createAdmission, type ExternalAuthorizer } from './admission.ts';
import type { ClusterNodes } from './cluster-nodes.ts';
import {
  answerUnreadableUrl,
  refuseExpectation,
  refuseOtherMethods,
  refuseUnparsable,
  setErrorHandlers,
} from './error-responses.ts';
import { streamEvents } from './event-stream.ts';
import { commonHeaders, requestIdFrom } from './headers.ts';
import { createMetrics, type Metrics } from './metrics.ts';
import { createMutations } from './mutations.ts';
import { openApi } from './openapi.ts';
import { maySee } from './principal.ts';
import { httpFailure } from './problems.ts';
import { createHandler } from './request-handler.ts';
import type { Route } from './route.ts';
import { mountRoutes } from './routes/mounts.ts';
import { type ServerBackend, serverRoutes } from './routes/server.ts';
import { storeRoutes } from './routes/stores.ts';
import { volumeListRoutes } from './routes/volume-list.ts';
import { volumeRoutes } from './routes/volumes.ts';

export interface RestServer {
  /** For a Unix socket, which only the administrator can open. */
  readonly local: Server;
  /** For TCP: a bearer token is required. */
  readonly remote: Server;
  /** Handles a request that another server received; a bearer token is required. */
  handle(request: IncomingMessage, response: ServerResponse): void;
  /** Handles a request from within this process, with the rights of the socket's owner. */
  handleTrusted(request: IncomingMessage, response: ServerResponse): void;
  ready(): Promise<void>;
  /** The metrics, to serve them on another address too. */
  readonly metrics: Metrics;
  /** Accepts no new requests, cancels reads and event streams, and waits for changes in flight. Cuts open connections after `graceMs`. */
  close(graceMs: number): Promise<void>;
}

export interface RestOptions {
  readonly core: Core;
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  /** Cancels changes that still run when the program ends. */
  readonly signal: AbortSignal;
  readonly isReady: () => boolean;
  readonly status: ServerBackend['status'];
  readonly doctor: ServerBackend['doctor'];
  readonly dataPaths: ServerBackend['dataPaths'];
  /** Authorizes requests that do not come through the socket. Left out: Stowage's own tokens. */
  readonly authorizer?: ExternalAuthorizer;
  /** The nodes of the cluster, for node-local volumes and stores. */
  readonly nodes?: ClusterNodes;
}

/** What all parts of the server share. */
interface ServerContext extends RestOptions {
  readonly app: FastifyInstance;
  readonly stopping: AbortController;
  readonly admission: Admission;
}

const maxBodyBytes = 64 * 1024;
const maxHeaderSize = 16 * 1024;
const timeouts = { requestTimeout: 30_000, headersTimeout: 10_000, keepAliveTimeout: 65_000 };

export function createRestServer(options: RestOptions): RestServer {
  const trusted = new WeakSet<IncomingMessage>();
  const app = createApp();
  const { core, authorizer } = options;
  const admission = createAdmission({ core, authorizer, isTrusted: (request) => trusted.has(request) });
  const shared: ServerContext = { ...options, app, stopping: new AbortController(), admission };
  const metrics = createMetrics({ ...options, dataPaths: options.dataPaths.list });
  addHooks(shared, metrics);
  setErrorHandlers(app, options.log, admission.principalOf);
  const allowedAt = addApi(shared);
  for (const path of addPlain(shared, metrics)) allowedAt.set(path, new Set(['GET', 'HEAD']));
  addEvents(shared);
  allowedAt.set('/v1/events', new Set(['GET']));
  refuseOtherMethods(app, allowedAt);

  const serve = (isLocal: boolean): Server => {
    // The Host header is not used, and Node's own error for a missing one would not be a problem document.
    const server = createServer({ ...timeouts, maxHeaderSize, requireHostHeader: false });
    server.on('request', (request, response) => {
      if (isLocal) trusted.add(request);
      app.routing(request, response);
    });
    return server.on('clientError', refuseUnparsable).on('checkExpectation', refuseExpectation);
  };
  const [local, remote] = [serve(true), serve(false)];
  return {
    local,
    remote,
    metrics,
    handle: (request, response) => void remote.emit('request', request, response),
    handleTrusted: (request, response) => void local.emit('request', request, response),
    ready: async () => {
      await app.ready();
    },
    close: async (graceMs) => {
      shared.stopping.abort(stoppingError());
      await Promise.all([local, remote].map((server) => closeServer(server, graceMs)));
      await app.close();
    },
  };
}

function createApp(): FastifyInstance {
  const app = fastify({
    bodyLimit: maxBodyBytes,
    logger: false,
    // Longer than any request line can be, so that the schema reports parameters that are too long.
    routerOptions: { maxParamLength: maxHeaderSize },
    frameworkErrors: answerUnreadableUrl,
    genReqId: (request) => requestIdFrom(request.headers),
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (_request, body, done) => {
    // Many clients send DELETE with a JSON content type and an empty body.
    if (body === '') return done(null, undefined);
    try {
      done(null, JSON.parse(String(body)));
    } catch {
      done(httpFailure(400));
    }
  });
  return app;
}

function addHooks({ app, stopping }: ServerContext, metrics: Metrics): void {
  // A request can arrive on a keep-alive connection after the server began to stop.
  app.addHook('onRequest', async (_request, reply) => {
    if (!stopping.signal.aborted) return;
    reply.header('connection', 'close');
    throw stoppingError();
  });
  app.addHook('onSend', async (request, reply) => {
    reply.headers(commonHeaders(request.id));
    if (stopping.signal.aborted) reply.header('connection', 'close');
  });
  app.addHook('onResponse', async (request, reply) => {
    metrics.request(request.method, request.routeOptions.url ?? 'none', reply.statusCode, reply.elapsedTime / 1000);
  });
}

/** Returns the allowed methods of each path. */
function addApi(shared: ServerContext): Map<string, Set<string>> {
  const { app, core, clock, version } = shared;
  const mutations = createMutations(core, clock);
  const routes: readonly Route[] = [
    ...volumeListRoutes,
    ...volumeRoutes,
    ...mountRoutes,
    ...storeRoutes,
    ...serverRoutes({ ...shared, resultOf: mutations.resultOf }),
  ];
  const allowedAt = new Map<string, Set<string>>();
  for (const route of routes) {
    const url = route.path.replaceAll(/\{(\w+)\}/g, ':$1');
    const handler = createHandler({ ...shared, mutations, stopping: shared.stopping.signal }, route);
    app.route({ method: route.method, url, handler });
    const allowed = allowedAt.get(url) ?? new Set();
    allowedAt.set(url, allowed.add(route.method));
    if (route.method === 'GET') allowed.add('HEAD');
  }
  const document = openApi(routes, version);
  app.get('/openapi.json', () => document);
  allowedAt.set('/openapi.json', new Set(['GET', 'HEAD']));
  return allowedAt;
}

function addPlain({ app, log, stopping, isReady, admission }: ServerContext, metrics: Metrics): readonly string[] {
  app.get('/healthz', (_request, reply) => reply.type('text/plain').send('ok\n'));
  app.get('/readyz', (_request, reply) => {
    if (isReady()) return reply.type('text/plain').send('ready\n');
    throw new StowageError('Stowage is still starting', {
      code: 'unavailable',
      reason: 'starting',
      action: 'Try again in a moment.',
    });
  });
  app.get('/metrics', async (request, reply) => {
    const principal = await admission.admit(request, metricsRight, stopping.signal);
    const scope = { signal: stopping.signal, log };
    return reply.type(metrics.contentType).send(await metrics.text((store) => maySee(principal, store), scope));
  });
  return ['/healthz', '/readyz', '/metrics'];
}

function addEvents({ app, core, stopping, admission }: ServerContext): void {
  // No HEAD: Fastify would run the handler, which never ends.
  app.get('/v1/events', { exposeHeadRoute: false }, async (request, reply) => {
    const principal = await admission.admit(request, eventsRight, stopping.signal);
    const stillAllowed = (): boolean => admission.isStillAdmitted(request, eventsRight, principal);
    reply.hijack();
    const options = { principal, requestId: request.id, signal: stopping.signal, stillAllowed };
    streamEvents(core, request.raw, reply.raw, options);
  });
}

async function closeServer(server: Server, graceMs: number): Promise<void> {
  if (!server.listening) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  const timer = setTimeout(() => server.closeAllConnections(), graceMs);
  // A busy connection that becomes idle without `Connection: close` would stay open until its keep-alive timeout.
  const idle = setInterval(() => server.closeIdleConnections(), 100);
  await promise;
  clearTimeout(timer);
  clearInterval(idle);
}
