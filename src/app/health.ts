import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { allAddresses, listenTcp, parseListen } from './listen.ts';

export interface Health extends AsyncDisposable {
  /** The address that it listens on. Undefined: none. */
  readonly address: string | undefined;
}

export interface MetricsText {
  readonly contentType: string;
  text(): Promise<string>;
}

/**
 * For probes and Prometheus: `/healthz` answers as long as the process lives; `/readyz` when it works or is ready to take over, otherwise
 * with the reason; `/metrics` as soon as there are metrics. Without authentication: nothing is secret, and nothing can be changed.
 */
export async function serveHealth(
  listen: string | undefined,
  whyNotReady: () => string | undefined,
  metrics: () => MetricsText | undefined = () => undefined,
): Promise<Health> {
  const at = parseListen(listen ?? 'none', allAddresses);
  if (at === undefined) return { address: undefined, [Symbol.asyncDispose]: async () => undefined };
  const sendMetrics = metricsHandler(metrics);
  const server = createServer((request, response) => {
    const path = pathOf(request);
    if (path === '/metrics') return void sendMetrics(response);
    const why = path === '/healthz' ? undefined : path === '/readyz' ? whyNotReady() : 'not here';
    reply(response, why === undefined ? 200 : path === '/readyz' ? 503 : 404, why ?? 'ok');
  });
  const address = await listenTcp(server, at);
  return { address, [Symbol.asyncDispose]: () => closeServer(server) };
}

export interface MetricsServerOptions {
  readonly clock: Clock;
  readonly log: Log;
}

export interface Metrics extends AsyncDisposable {
  /** Resolves when it listens. */
  readonly address: Promise<string>;
}

/** The connection limit: Prometheus uses one or two. */
const maxConnections = 32;
const listenRetryMs = 10_000;

/**
 * Serves only `/metrics`, on an address that other machines reach. If it cannot listen (the port is in use, the machine does not have the
 * address yet) it retries: the process works without metrics.
 */
export function serveMetrics(
  listen: string | undefined,
  metrics: () => MetricsText | undefined,
  { clock, log }: MetricsServerOptions,
): Metrics {
  const at = parseListen(listen ?? 'none');
  const ending = new AbortController();
  const { promise: address, resolve } = Promise.withResolvers<string>();
  const tell = metricsHandler(metrics);
  let current: Server | undefined;

  async function open(to: NonNullable<typeof at>): Promise<void> {
    for (let wasLogged = false; !ending.signal.aborted; wasLogged = true) {
      const server = createServer((request, response) => {
        if (pathOf(request) === '/metrics') void tell(response);
        else reply(response, 404, 'not here');
      });
      server.maxConnections = maxConnections;
      try {
        const where = await listenTcp(server, to);
        current = server;
        resolve(where);
        return;
      } catch (cause) {
        if (!wasLogged) log.warn('cannot serve metrics on this address yet', { address: listen, cause: String(cause) });
      }
      await clock.sleep(listenRetryMs, ending.signal).catch(() => undefined);
    }
  }

  const opening = at === undefined ? Promise.resolve() : open(at);
  return {
    address,
    [Symbol.asyncDispose]: async () => {
      ending.abort();
      await opening;
      if (current !== undefined) await closeServer(current);
    },
  };
}

const pathOf = ({ url = '' }: IncomingMessage): string => url.split('?')[0] ?? '';

function reply(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' }).end(`${text}\n`);
}

/** Concurrent requests share one collection of the metrics. */
function metricsHandler(metrics: () => MetricsText | undefined): (response: ServerResponse) => Promise<void> {
  let inFlight: Promise<string> | undefined;
  return async (response) => {
    const found = metrics();
    if (found === undefined) return reply(response, 503, 'there are no metrics yet');
    inFlight ??= found.text().finally(() => {
      inFlight = undefined;
    });
    try {
      const text = await inFlight;
      response.writeHead(200, { 'content-type': found.contentType }).end(text);
    } catch (thrown) {
      reply(response, 500, String(thrown));
    }
  };
}

async function closeServer(server: Server): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  server.closeAllConnections();
  await promise;
}
