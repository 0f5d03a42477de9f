import { createServer } from 'node:http';
import { listenTcp, parseListen } from './listen.ts';

export interface Health extends AsyncDisposable {
  /** Where it listens. Undefined: nowhere. */
  readonly address: string | undefined;
}

/** For probes: `/healthz` as long as the process lives, `/readyz` when it does its work or could; else why not. */
export async function serveHealth(listen: string | undefined, whyNotReady: () => string | undefined): Promise<Health> {
  const at = parseListen(listen ?? 'none');
  if (at === undefined) return { address: undefined, [Symbol.asyncDispose]: async () => undefined };
  const server = createServer((request, response) => {
    const [path] = (request.url ?? '').split('?');
    const why = path === '/healthz' ? undefined : path === '/readyz' ? whyNotReady() : 'not here';
    const status = why === undefined ? 200 : path === '/readyz' ? 503 : 404;
    response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8' }).end(`${why ?? 'ok'}\n`);
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
