import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import { restingMemory } from '../server.ts';

export interface ExitResult {
  readonly status: number | string | null;
  /** The last lines of standard error. */
  readonly errors: string;
}

export interface Running {
  readonly pid: number;
  readonly stdout: Readable;
  readonly ended: Promise<ExitResult>;
  /** Resolves when the process has printed this text. */
  printed(text: string): Promise<void>;
  restingMemory(): Promise<number>;
  /** CPU time since the start of the process, in milliseconds. */
  cpuMs(): Promise<number>;
  /** Sends SIGTERM and waits for the end of the process. */
  stop(): Promise<void>;
}

const maxErrorLength = 2_000;
const stopMs = 15_000;
const timeoutMs = 120_000;
/** Programs check every ten seconds whether they are idle, and then release unused memory. */
const idleMs = 25_000;

/** Measurements of any process. */
export const processOf = (pid: number | undefined, signal: AbortSignal): Pick<Running, 'restingMemory' | 'cpuMs'> => ({
  restingMemory: () => restingMemory({ pid }, signal, idleMs),
  cpuMs: async () => {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
    // The fields follow the name, which may contain blanks. They count hundredths of a second in user and kernel mode.
    const [user, system] = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .slice(11, 13);
    return (Number(user) + Number(system)) * 10;
  },
});

export function start(
  [file, ...words]: readonly [string, ...string[]],
  signal: AbortSignal,
  env: Readonly<Record<string, string>> = {},
): Running {
  const child = spawn(file, words, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env }, signal });
  child.on('error', () => undefined);
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    // When a bundle throws, Node prints the source line, which is most of the program.
    errors = `${errors}${chunk.replaceAll(/^.{400,}$/gm, '…')}`.slice(-maxErrorLength);
  });
  const ended = once(child, 'close').then(([code, by]): ExitResult => ({ status: code ?? by, errors }));
  return {
    // A process that failed to start has no pid. Its error is thrown when it is awaited.
    pid: child.pid ?? 0,
    stdout: child.stdout,
    ended,
    printed: async (wanted) => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      let output = '';
      child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
        output += chunk;
        if (output.includes(wanted)) resolve();
      });
      const late = AbortSignal.timeout(timeoutMs);
      late.addEventListener('abort', () => reject(new Error(`it did not say “${wanted}”: ${errors}`)), { once: true });
      void ended.then(({ status }) => reject(new Error(`it ended with ${status}: ${errors}`)));
      await promise;
    },
    ...processOf(child.pid, signal),
    stop: async () => {
      child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), stopMs);
      await ended;
      clearTimeout(timer);
    },
  };
}
