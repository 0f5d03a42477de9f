/** For tests: a real server on a Unix socket with scripted answers, and a command line that uses it. */
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { problemType } from '#base/problem.ts';
import type { Io, ProgramServices } from './io.ts';
import { runCli } from './run.ts';

export interface ReceivedRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: unknown;
}

type Reply = readonly [status: number, body?: unknown];
type Script = Readonly<Record<string, Reply | ((seen: ReceivedRequest, answer: ServerResponse) => Reply | undefined)>>;

export interface Server extends AsyncDisposable {
  readonly socket: string;
  readonly seen: ReceivedRequest[];
  listen(): Promise<void>;
  /** Breaks every connection, as a crash does. */
  stop(): Promise<void>;
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  let text = '';
  for await (const chunk of request) text += String(chunk);
  return text === '' ? undefined : JSON.parse(text);
}

/** Keys are `METHOD /path`, without the query unless the script has it. */
export async function scriptedServer(script: Script): Promise<Server> {
  const folder = await mkdtemp(join(tmpdir(), 'stowage-cli-'));
  const socket = join(folder, 's.sock');
  const seen: ReceivedRequest[] = [];
  const server = createServer((request, answer) => {
    void bodyOf(request).then((body) => {
      const { method = '', url = '', headers } = request;
      const one = { method, url, headers, body };
      seen.push(one);
      const entry = script[`${method} ${url}`] ?? script[`${method} ${url.replace(/\?.*/, '')}`] ?? missing(url);
      const reply = typeof entry === 'function' ? entry(one, answer) : entry;
      if (reply === undefined) return;
      const [status, value] = reply;
      const type = status >= 400 ? problemType : 'application/json';
      answer.writeHead(status, { 'content-type': type }).end(value === undefined ? undefined : JSON.stringify(value));
    });
  });
  const listen = async (): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>();
    server.listen(socket, resolve);
    await promise;
  };
  const stop = async (): Promise<void> => {
    const { promise, resolve } = Promise.withResolvers<void>();
    server.close(() => resolve());
    server.closeAllConnections();
    await promise;
  };
  await listen();
  return {
    socket,
    seen,
    listen,
    stop,
    [Symbol.asyncDispose]: async () => {
      await stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

export const problem = (code: string, detail: string, action = 'Do something else.', status = 400): Reply => [
  status,
  { type: 'about:blank', title: code, status, detail, code, reason: code, action, requestId: 'r1' },
];
/** A list with a single page. */
export const page = (...items: readonly object[]): readonly [number, object] => [200, { items, next: null }];
const missing = (url: string): Reply => problem('not-found', `no script for ${url}`, 'Write one.', 404);

class Sink extends Writable {
  text = '';
  override _write(chunk: unknown, _encoding: string, done: (error?: Error | null) => void): void {
    this.text += String(chunk);
    done();
  }
}

export interface CommandResult {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

const injected: ProgramServices = {
  up: async () => 0,
  controller: () => Promise.resolve(0),
  nfsServe: async () => 0,
  keeper: async () => 0,
  doctor: async () => [{ check: 'fuse', ok: 'no', detail: '/dev/fuse is missing', fix: 'modprobe fuse' }],
  version: '1.2.3',
  program: 'stowage',
};

/** Runs a command line against the server, as a program in a pipe would unless told otherwise. */
export async function run(
  server: Pick<Server, 'socket'> | undefined,
  argv: readonly string[],
  how: Partial<Io> & { readonly injected?: Partial<ProgramServices> } = {},
): Promise<CommandResult> {
  const stdout = new Sink();
  const stderr = new Sink();
  const io: Io = {
    stdout,
    stderr,
    isTTY: false,
    env: server === undefined ? {} : { STOWAGE_SOCKET: server.socket },
    signal: new AbortController().signal,
    ...how,
  };
  const status = await runCli(argv, io, { ...injected, ...how.injected });
  return { status, stdout: stdout.text, stderr: stderr.text };
}

export const volume = (store: string, name: string, more: object = {}): object => ({
  id: `sv1-00000000-0000-4000-8000-${Buffer.from(name).toString('hex').padStart(12, '0').slice(-12)}`,
  store,
  name,
  bytes: '1073741824',
  enforced: true,
  access: 'filesystem',
  labels: {},
  createdAt: new Date(Date.now() - 3 * 86_400_000 - 5000).toISOString(),
  revision: 1,
  ...more,
});

export const store = (name: string, more: object = {}): object => ({
  name,
  kind: 'local',
  uri: `local:///srv/${name}`,
  default: true,
  origin: 'api',
  state: 'open',
  identity: null,
  problem: null,
  pending: null,
  network: null,
  readOnly: false,
  enforcesCapacity: false,
  access: ['filesystem'],
  onDelete: 'delete',
  retention: '7d',
  maxVolumes: null,
  maxBytes: null,
  defaultSize: null,
  volumes: 2,
  bytes: '0',
  totalBytes: '2147483648',
  freeBytes: '1073741824',
  ...more,
});

export const operation = (state: string, more: object = {}): object => ({
  id: 'op1-x',
  kind: 'volume.delete',
  store: 'local',
  subject: 'local/demo',
  state,
  progress: null,
  startedAt: new Date().toISOString(),
  endedAt: state === 'running' ? null : new Date().toISOString(),
  error: null,
  result: null,
  ...more,
});
