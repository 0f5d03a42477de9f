import { randomUUID } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { Agent, type IncomingHttpHeaders, type RequestOptions, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Running, startUp, type UpSettings } from '#app/up.ts';
import { silentLog } from '#base/log.ts';
import { readEvents, type ServerEvent } from '#cli/sse.ts';
import type { WholeCore } from '#core/core.ts';

/** A complete server in this process with a temporary state folder: real records, real stores, real sockets. */
export interface TestServer extends AsyncDisposable {
  readonly folder: string;
  /** The directory of the store that exists without configuration. */
  readonly storeFolder: string;
  readonly core: WholeCore;
  readonly running: Running;
  /** Calls the API over the Unix socket, as admin. */
  readonly admin: Api;
  /** Calls the API over TCP, with that token or without one. */
  remote(token?: string): Api;
  /** Calls the API over TCP, with a new token. */
  as(role: 'viewer' | 'user' | 'admin', ...stores: string[]): Promise<Api>;
  readonly port: number;
  stop(): Promise<readonly string[]>;
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** The parsed JSON, or the text. */
  // biome-ignore lint/suspicious/noExplicitAny: an answer of any route
  readonly body: any;
}

export interface CallOptions {
  readonly body?: unknown;
  /** Sent unchanged instead of `body`. */
  readonly raw?: string | Buffer;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A minimal client that sends its arguments unchanged, so it can also send invalid requests. */
export interface Api {
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
  get(path: string, headers?: Readonly<Record<string, string>>): Promise<Answer>;
  post(path: string, body?: unknown, headers?: Readonly<Record<string, string>>): Promise<Answer>;
  patch(path: string, body?: unknown, headers?: Readonly<Record<string, string>>): Promise<Answer>;
  delete(path: string, headers?: Readonly<Record<string, string>>): Promise<Answer>;
  /** Resolves when the stream has started. */
  follow(headers?: Readonly<Record<string, string>>): Promise<Stream>;
}

export interface Stream extends Disposable {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  /** The next event; undefined when the server has ended the stream. */
  next(): Promise<ServerEvent | undefined>;
  /** Reads until an event of that type, and returns it. */
  until(type: string): Promise<ServerEvent>;
}

export type ServerOptions = Partial<Pick<UpSettings, 'config' | 'listen' | 'clock' | 'kinds' | 'engines' | 'log'>> & {
  /** An existing state folder, for a restart. */
  readonly folder?: string;
};

export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const folder = options.folder ?? (await mkdtemp(join(tmpdir(), 'stowage-server-')));
  const ending = new AbortController();
  const socket = join(folder, 's');
  const running = await startUp({
    ...options,
    folders: { state: folder, run: folder, config: folder, socket },
    config: options.config ?? 'none',
    listen: options.listen ?? '127.0.0.1:0',
    log: options.log ?? silentLog(),
    signal: ending.signal,
  });
  const port = Number(/:(\d+)$/.exec(running.addresses[1] ?? '')?.[1] ?? 0);
  const agents: Agent[] = [];
  const open = (where: RequestOptions, token?: string): Api => {
    const agent = new Agent({ keepAlive: true });
    agents.push(agent);
    return createApi({ ...where, agent }, token);
  };
  const admin = open({ socketPath: socket });
  const remote = (token?: string): Api => open({ host: '127.0.0.1', port }, token);
  let stopped: Promise<readonly string[]> | undefined;
  const stop = (): Promise<readonly string[]> => {
    stopped ??= running.stop().finally(() => ending.abort());
    return stopped;
  };
  return {
    folder,
    running,
    admin,
    remote,
    port,
    stop,
    core: running.core,
    storeFolder: join(folder, 'stores', 'local'),
    as: async (role, ...stores) => {
      const { status, body } = await admin.post('/v1/tokens', {
        name: randomUUID(),
        role,
        ...(stores.length > 0 && { stores }),
      });
      if (status !== 201) throw new Error(`no token: ${JSON.stringify(body)}`);
      return remote(body.secret);
    },
    [Symbol.asyncDispose]: async () => {
      await stop();
      for (const agent of agents) agent.destroy();
      if (options.folder === undefined) await rm(folder, { recursive: true, force: true });
    },
  };
}

/** The token for the TCP port, from the file that users read. */
export const firstToken = async (folder: string): Promise<string> =>
  (await readFile(join(folder, 'token'), 'utf8')).trim();

export function createApi(where: RequestOptions, token?: string): Api {
  const auth = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const call: Api['call'] = (method, path, { body, raw, headers } = {}) => {
    const content = raw ?? (body === undefined ? undefined : JSON.stringify(body));
    const type = body === undefined ? {} : { 'content-type': 'application/json' };
    return exchange({ ...where, method, path, headers: { ...auth, ...type, ...headers } }, content);
  };
  return {
    call,
    get: (path, headers = {}) => call('GET', path, { headers }),
    post: (path, body, headers = {}) => call('POST', path, { body, headers }),
    patch: (path, body, headers = {}) => call('PATCH', path, { body, headers }),
    delete: (path, headers = {}) => call('DELETE', path, { headers }),
    follow: (headers = {}) => follow({ ...where, agent: false, path: '/v1/events', headers: { ...auth, ...headers } }),
  };
}

function exchange(options: RequestOptions, content: string | Buffer | undefined): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const sent = request(options, (response) => {
    const chunks: Buffer[] = [];
    response.on('data', (chunk: Buffer) => chunks.push(chunk));
    response.on('error', reject);
    response.on('end', () => {
      const text = Buffer.concat(chunks).toString();
      const isJson = /^application\/(problem\+)?json/.test(response.headers['content-type'] ?? '');
      const body: unknown = isJson && text !== '' ? JSON.parse(text) : undefined;
      resolve({ status: response.statusCode ?? 0, headers: response.headers, text, body });
    });
  });
  sent.on('error', reject);
  sent.end(content);
  return promise;
}

function follow(options: RequestOptions): Promise<Stream> {
  const { promise, resolve, reject } = Promise.withResolvers<Stream>();
  const sent = request(options, (response) => {
    const events = readEvents(response);
    const next = async (): Promise<ServerEvent | undefined> => (await events.next()).value ?? undefined;
    const until = async (type: string): Promise<ServerEvent> => {
      for (;;) {
        const event = await next();
        if (event === undefined) throw new Error(`the stream ended before ${type}`);
        if (event.type === type) return event;
      }
    };
    const { statusCode = 0, headers } = response;
    resolve({ status: statusCode, headers, next, until, [Symbol.dispose]: () => sent.destroy() });
  });
  sent.on('error', reject);
  sent.end();
  return promise;
}
