import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { isStopped } from '#testing/suspend.ts';
import { onPath } from './component.ts';

/** Below the two minutes that a hook of a test has. */
const startDeadline = 100_000;
const stopDeadline = 20_000;
/** How much of a failed program's output is worth showing. */
const shown = 2_000;

/** A program that a test runs beside itself. It ends by its process id, and with the test process even when that is killed. */
export interface Daemon {
  readonly pid: number;
  /** Resolves when it has, in whatever way. */
  readonly ended: Promise<void>;
  /** Returns when every thread of it stands still. Connections are still taken by the kernel, nobody answers on them. */
  freeze(): Promise<void>;
  thaw(): void;
  /** Tells it to end, and kills it when it does not. */
  stop(): Promise<void>;
  kill(): Promise<void>;
}

export interface DaemonOptions {
  readonly command: readonly [string, ...string[]];
  readonly env?: Readonly<Record<string, string>>;
  /** Where its output goes, begun anew. */
  readonly logFile: string;
  /** Given the log so far. */
  readonly isReady: (log: string) => boolean;
  readonly signal: AbortSignal;
}

export async function startDaemon(options: DaemonOptions): Promise<Daemon> {
  const { command, env, logFile, isReady, signal } = options;
  const output = openSync(logFile, 'w');
  const child = spawn(onPath('setpriv') ?? 'setpriv', ['--pdeathsig', 'KILL', '--', ...command], {
    env: { ...process.env, ...env },
    stdio: ['ignore', output, output],
  });
  closeSync(output);
  const ended = once(child, 'exit');
  const daemon = control(child.pid, ended);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startDeadline)]);
  const early = ended.then(([code, by]) => Promise.reject(new Error(`it ended with ${code ?? by}`)));
  // Later, it may end whenever it likes.
  early.catch(() => undefined);
  const ready = async (): Promise<void> => {
    while (!isReady(readFileSync(logFile, 'utf8'))) await delay(20, undefined, { signal: limit });
  };
  try {
    await Promise.race([ready(), early]);
  } catch (cause) {
    await daemon.kill();
    throw new Error(`${command.join(' ')} did not start:\n${readFileSync(logFile, 'utf8').slice(-shown)}`, { cause });
  }
  return daemon;
}

function control(pid: number | undefined, ended: Promise<unknown>): Daemon {
  let isOver = false;
  const over = ended.then(
    () => {
      isOver = true;
    },
    () => {
      isOver = true;
    },
  );
  const tell = (name: NodeJS.Signals): void => {
    // Once it has ended, its number may be somebody else's.
    if (pid !== undefined && !isOver) process.kill(pid, name);
  };
  const kill = async (): Promise<void> => {
    tell('SIGKILL');
    await over;
  };
  return {
    pid: pid ?? 0,
    ended: over,
    kill,
    thaw: () => tell('SIGCONT'),
    freeze: async () => {
      tell('SIGSTOP');
      while (!isOver && pid !== undefined && !isStopped(pid)) await delay(5);
    },
    stop: async () => {
      tell('SIGTERM');
      tell('SIGCONT');
      const patience = new AbortController();
      const late = delay(stopDeadline, undefined, { signal: patience.signal }).then(kill, () => undefined);
      await over;
      patience.abort();
      await late;
    },
  };
}

/** One of the sixteen million addresses of loopback: on one that nobody else uses, a free port stays free. */
export function loopbackAddress(): string {
  const byte = (): number => 1 + Math.floor(Math.random() * 254);
  return `127.${byte()}.${byte()}.${byte()}`;
}

export async function freePorts(host: string, count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, host));
  try {
    await Promise.all(servers.map((server) => once(server, 'listening')));
    return servers.map((server) => (server.address() as { readonly port: number }).port);
  } finally {
    await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()));
  }
}
