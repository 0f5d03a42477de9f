import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { request } from 'node:http';
import { fileURLToPath } from 'node:url';

export const program = fileURLToPath(new URL('../bin/stowage', import.meta.url));

export interface Answer {
  readonly status: number;
  // Untyped, because tests inspect arbitrary answers.
  readonly body: { readonly [key: string]: unknown };
}

export interface CommandResult {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** The real program as a process of its own, with its own state folder. */
export interface Stowage {
  readonly pid: number;
  /** Its output so far. */
  readonly output: () => string;
  /** Calls the API over the socket. Rejects if the server dies before it answers. */
  api(method: string, path: string, body?: unknown, headers?: Readonly<Record<string, string>>): Promise<Answer>;
  cli(...args: string[]): Promise<CommandResult>;
  signal(signal: NodeJS.Signals): void;
  /** Resolves when the process has ended. */
  ended(): Promise<number | NodeJS.Signals | null>;
  /** Sends SIGTERM and waits for the end. */
  stop(): Promise<void>;
}

export interface StowageOptions {
  readonly state: string;
  /** Default: a socket in the state folder. */
  readonly socket?: string;
  readonly config?: string;
  readonly listen?: string;
  /** Additional options of `up`. */
  readonly options?: readonly string[];
  /** The command and its first arguments. Default: `bin/stowage`. */
  readonly command?: readonly string[];
  /** Called as soon as the process runs. */
  readonly onSpawn?: (child: ChildProcess) => void;
}

/** Resolves when Stowage prints `stowage ready`. Rejects with the output if the process ends before that. */
export async function startStowage(options: StowageOptions): Promise<Stowage> {
  const [command = program, ...first] = options.command ?? [program];
  const socket = options.socket ?? `${options.state}/stowage.sock`;
  const args = [
    ...first,
    ...(options.socket === undefined ? [] : ['--socket', socket]),
    'up',
    '--state',
    options.state,
    '--config',
    options.config ?? 'none',
    '--listen',
    options.listen ?? 'none',
    ...(options.options ?? []),
  ];
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  options.onSpawn?.(child);
  const exited = exitOf(child);
  let output = '';
  const { promise: ready, resolve, reject } = Promise.withResolvers<void>();
  const onOutput = (chunk: Buffer): void => {
    output += String(chunk);
    if (/^stowage ready/m.test(output)) resolve();
  };
  child.stdout.on('data', onOutput);
  child.stderr.on('data', onOutput);
  void exited.then((exit) => reject(new Error(`stowage up ended with ${exit}:\n${output}`)));
  await ready;
  return {
    pid: child.pid ?? 0,
    output: () => output,
    api: (method, path, body, headers = {}) => call(socket, method, path, body, headers),
    cli: (...rest) => run(command, [...first, '--socket', socket, ...rest]),
    signal: (signal) => void child.kill(signal),
    ended: () => exited,
    stop: async () => {
      child.kill('SIGTERM');
      await exited;
    },
  };
}

function exitOf(child: ChildProcess): Promise<number | NodeJS.Signals | null> {
  const { promise, resolve } = Promise.withResolvers<number | NodeJS.Signals | null>();
  child.once('error', () => resolve(null));
  child.once('close', (code, signal) => resolve(code ?? signal));
  return promise;
}

/** Resolves whatever the exit status is, because tests check it. */
export function run(command: string, args: readonly string[]): Promise<CommandResult> {
  const { promise, resolve } = Promise.withResolvers<CommandResult>();
  let timeoutNote = '';
  const child = execFile(command, args, (error, stdout, stderr) => {
    clearTimeout(timer);
    resolve({ status: error === null ? 0 : Number(error.code ?? -1), stdout, stderr: `${stderr}${timeoutNote}` });
  });
  const timer = setTimeout(() => {
    timeoutNote = `\nended after ${callLimitMs} ms, in which it did not end by itself:\n${threadsOf(child.pid ?? -1)}`;
    child.kill('SIGKILL');
  }, callLimitMs);
  return promise;
}

const callLimitMs = 60_000;

/** The kernel functions in which the threads of the process wait, for diagnosis. */
function threadsOf(pid: number): string {
  const readOrError = (path: string): string => {
    try {
      return readFileSync(path, 'utf8').trim();
    } catch (cause) {
      return String(cause);
    }
  };
  try {
    return readdirSync(`/proc/${pid}/task`)
      .map((id) =>
        ['comm', 'wchan', 'syscall', 'stat'].map((name) => readOrError(`/proc/${pid}/task/${id}/${name}`)).join(' | '),
      )
      .join('\n');
  } catch (cause) {
    return String(cause);
  }
}

export function call(
  socket: string,
  method: string,
  path: string,
  body: unknown,
  headers: Readonly<Record<string, string>>,
): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const text = body === undefined ? undefined : JSON.stringify(body);
  const allHeaders = text === undefined ? headers : { 'content-type': 'application/json', ...headers };
  const sent = request({ socketPath: socket, method, path, headers: allHeaders, agent: false }, (response) => {
    const chunks: Buffer[] = [];
    response.on('data', (chunk: Buffer) => chunks.push(chunk));
    response.on('error', reject);
    response.on('end', () => {
      const answer = Buffer.concat(chunks).toString();
      resolve({
        status: response.statusCode ?? 0,
        body: answer.startsWith('{') ? JSON.parse(answer) : { text: answer },
      });
    });
  });
  sent.on('error', reject);
  sent.end(text);
  return promise;
}
