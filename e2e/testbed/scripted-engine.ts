import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export type Script = (path: string, request: IncomingMessage, response: ServerResponse) => void;

/** A fake container engine with scripted answers. */
export interface ScriptedEngine extends AsyncDisposable {
  readonly socket: string;
  /** The requests as `METHOD /path?query`, without requests for the version. */
  readonly requests: readonly string[];
  /** Can be replaced at any time. */
  script: Script;
  /** The answer to `GET /version`. */
  version: object;
  /** Closes all connections and the socket. */
  stop(): Promise<void>;
  start(): Promise<void>;
}

export async function startScriptedEngine(script: Script): Promise<ScriptedEngine> {
  const folder = await mkdtemp(join(tmpdir(), 'stowage-scripted-'));
  const socket = join(folder, 'engine.sock');
  const requests: string[] = [];
  let server: Server | undefined;
  const stop = async (): Promise<void> => {
    const current = server;
    server = undefined;
    if (current === undefined) return;
    current.closeAllConnections();
    current.close();
    await once(current, 'close');
  };
  const engine: ScriptedEngine = {
    socket,
    requests: requests,
    script,
    stop,
    version: { Version: '20.10.24', ApiVersion: '1.41', MinAPIVersion: '1.12' },
    start: async () => {
      server = createServer((request, response) => {
        const url = request.url ?? '';
        if (url === '/version') {
          response.end(JSON.stringify(engine.version));
          return;
        }
        requests.push(`${request.method} ${url}`);
        engine.script(url.replace(/^\/v[\d.]+|\?.*$/g, ''), request, response);
      });
      server.listen(socket);
      await once(server, 'listening');
    },
    [Symbol.asyncDispose]: async () => {
      await stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
  await engine.start();
  return engine;
}
