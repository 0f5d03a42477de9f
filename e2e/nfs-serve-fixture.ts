import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { program } from './stowage.ts';

export interface NfsServeProcess {
  readonly child: ChildProcess;
  readonly port: number;
  readonly portmapper: number | null;
  readonly uri: string;
  /** A URL for the libnfs tools, with additional parameters. */
  url(path?: string, more?: string): string;
  /** The standard error output so far. */
  readonly stderr: () => string;
  /** Sends the signal and resolves with the exit status or the signal that ended the process. */
  end(signal?: NodeJS.Signals): Promise<number | NodeJS.Signals>;
}

export interface NfsServeFixture {
  readonly top: string;
  /** The exported folder, initially empty. */
  readonly exported: string;
  serve(options?: readonly string[], serveOptions?: ServeOptions): Promise<NfsServeProcess>;
}

interface ServeOptions {
  readonly command?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly channel?: boolean;
}

/**
 * Temporary folders, and a function that runs `stowage nfs serve` on them. The fixture removes all of it after the
 * test.
 */
export async function createNfsServeFixture(): Promise<NfsServeFixture> {
  const top = await realpath(await mkdtemp(join(tmpdir(), 'stowage-nfs-serve-')));
  onTestFinished(() => rm(top, { recursive: true }));
  const exported = join(top, 'exported');
  await mkdir(exported);
  return {
    top,
    exported,
    serve: (options = [], serveOptions = {}) => {
      const stateArgs = options.includes('--state') ? [] : ['--state', join(top, 'state')];
      const portArgs = options.includes('--port') ? [] : ['--port', '0'];
      return serve(['--json', 'nfs', 'serve', exported, ...stateArgs, ...portArgs, ...options], serveOptions);
    },
  };
}

/** Runs the program with these arguments until the end of the test. */
export async function serve(args: readonly string[], options: ServeOptions = {}): Promise<NfsServeProcess> {
  const [file = program, ...first] = options.command ?? [program];
  const child = spawn(file, [...first, ...args], {
    stdio: ['ignore', 'pipe', 'pipe', ...(options.channel === true ? (['ipc'] as const) : [])],
    env: { ...process.env, ...options.env },
  });
  const ended = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const { promise: ready, resolve, reject } = Promise.withResolvers<Record<'port', number> & { uri: string }>();
  let [errorOutput, stdout] = ['', ''];
  child.stderr?.on('data', (text: Buffer) => {
    errorOutput += String(text);
  });
  child.stdout?.on('data', (text: Buffer) => {
    stdout += String(text);
    if (stdout.endsWith('\n}\n')) resolve(JSON.parse(stdout));
  });
  void ended.then(([code, signal]) => reject(new Error(`nfs serve ended with ${code ?? signal}:\n${errorOutput}`)));
  const { port, ...about } = await ready;
  return {
    child,
    port,
    ...(about as { uri: string; portmapper: number | null }),
    stderr: () => errorOutput,
    url: (path = '', more = '') => `nfs://127.0.0.1/export${path}?nfsport=${port}&mountport=${port}${more}`,
    end: async (signal = 'SIGTERM') => {
      child.kill(signal);
      const [code, signalName] = await ended;
      return code ?? signalName ?? 'SIGKILL';
    },
  };
}
