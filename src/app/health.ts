import { createServer, type ServerResponse } from 'node:http';
import { listenTcp, parseListen } from './listen.ts';

export interface Health extends AsyncDisposable {
  /** Where it listens. Undefined: nowhere. */
  readonly address: string | undefined;
}

export interface Figures {
  readonly contentType: string;
  text(): Promise<string>;
}

/**
 * For probes and Prometheus: `/healthz` as long as the process lives, `/readyz` when it does its work or could; else why not.
 * `/metrics`: the figures, as soon as there are any. Nothing of it is a secret, and nothing can be changed: no token is asked for.
 */
export async function serveHealth(
  listen: string | undefined,
  whyNotReady: () => string | undefined,
  figures: () => Figures | undefined = () => undefined,
): Promise<Health> {
  const at = parseListen(listen ?? 'none');
  if (at === undefined) return { address: undefined, [Symbol.asyncDispose]: async () => undefined };
  const say = (response: ServerResponse, status: number, text: string): void => {
    response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' }).end(`${text}\n`);
  };
  const tell = async (response: ServerResponse): Promise<void> => {
    const found = figures();
    if (found === undefined) return say(response, 503, 'there are none yet');
    try {
      const text = await found.text();
      response.writeHead(200, { 'content-type': found.contentType }).end(text);
    } catch (thrown) {
      say(response, 500, String(thrown));
    }
  };
  const server = createServer((request, response) => {
    const [path] = (request.url ?? '').split('?');
    if (path === '/metrics') return void tell(response);
    const why = path === '/healthz' ? undefined : path === '/readyz' ? whyNotReady() : 'not here';
    say(response, why === undefined ? 200 : path === '/readyz' ? 503 : 404, why ?? 'ok');
  });
  const address = await listenTcp(server, at);
  return {
    address,
    [Symbol.asyncDispose]: async () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      server.close(() => resolve());
      server.closeAllConnections();
      await promise;
    },
  };
}
