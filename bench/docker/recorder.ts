import { once } from 'node:events';
import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { buffer } from 'node:stream/consumers';

/** One call of the engine, and the time until its answer. */
export interface RecordedCall {
  /** `Get`, `Mount`, `Unmount` … */
  readonly method: string;
  readonly ms: number;
}

/** A proxy in front of a volume plugin that records calls. */
export interface Recorder extends AsyncDisposable {
  /** The calls that were answered since the last `take`. */
  take(): readonly RecordedCall[];
}

/** Listens at `socket`, and forwards calls to the plugin that listens at `behind`. */
export async function startRecorder(socket: string, behind: string): Promise<Recorder> {
  const agent = new Agent({ keepAlive: true });
  let calls: RecordedCall[] = [];

  async function passOn(asked: IncomingMessage, answer: ServerResponse): Promise<void> {
    const body = await buffer(asked);
    const since = performance.now();
    const path = asked.url ?? '/';
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const headers = { ...asked.headers, 'content-length': body.length };
    request({ socketPath: behind, path, method: asked.method ?? 'POST', headers, agent }, resolve)
      .once('error', reject)
      .end(body);
    const said = await promise;
    const text = await buffer(said);
    calls.push({ method: path.replace(/^.*\./, ''), ms: performance.now() - since });
    const type = said.headers['content-type'] ?? 'application/json';
    answer.writeHead(said.statusCode ?? 502, { 'content-type': type, 'content-length': text.length }).end(text);
  }

  // Without a keep-alive timeout, like the plugin: engines reuse connections, and retry a call when a connection was
  // closed.
  const server = createServer({ keepAliveTimeout: 0, requireHostHeader: false }, (asked, answer) => {
    passOn(asked, answer).catch((thrown: unknown) => {
      answer.destroy(thrown instanceof Error ? thrown : undefined);
    });
  });
  server.listen(socket);
  await once(server, 'listening');
  return {
    take: () => {
      const taken = calls;
      calls = [];
      return taken;
    },
    [Symbol.asyncDispose]: async () => {
      agent.destroy();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
