import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { isStopped } from '#testing/suspend.ts';
import { onPath } from './component.ts';

/** Shorter than the two minutes of a test hook. */
const startTimeoutMs = 100_000;
const stopTimeoutMs = 20_000;
/** The maximum length of a failed program's output in an error. */
const maxOutputChars = 2_000;

/** A background program of a test. It is killed by pid, and also ends when the test process is killed. */
export interface Daemon {
  readonly pid: number;
  /** Resolves when the program has ended for any reason. */
  readonly ended: Promise<void>;
  /**
   * Resolves when all threads of the program have stopped. The kernel still accepts connections, but nothing answers.
   */
  freeze(): Promise<void>;
  thaw(): void;
  /** Sends SIGTERM, and later SIGKILL if the program does not end. */
  stop(): Promise<void>;
  kill(): Promise<void>;
}

export interface DaemonOptions {
  readonly command: readonly [string, ...string[]];
  readonly env?: Readonly<Record<string, string>>;
  /** The file for the program's output, truncated at the start. */
  readonly logFile: string;
  /** Called with the log so far. */
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
  const daemon = controlDaemon(child.pid, ended);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startTimeoutMs)]);
  const exitBeforeReady = ended.then(([code, by]) => Promise.reject(new Error(`it ended with ${code ?? by}`)));
  // After the start, the program may end at any time.
  exitBeforeReady.catch(() => undefined);
  const waitUntilReady = async (): Promise<void> => {
    while (!isReady(readFileSync(logFile, 'utf8'))) await delay(20, undefined, { signal: limit });
  };
  try {
    await Promise.race([waitUntilReady(), exitBeforeReady]);
  } catch (cause) {
    await daemon.kill();
    throw new Error(`${command.join(' ')} did not start:\n${readFileSync(logFile, 'utf8').slice(-maxOutputChars)}`, {
      cause,
    });
  }
  return daemon;
}

function controlDaemon(pid: number | undefined, ended: Promise<unknown>): Daemon {
  let isOver = false;
  const anyEnd = ended.then(
    () => {
      isOver = true;
    },
    () => {
      isOver = true;
    },
  );
  const sendSignal = (name: NodeJS.Signals): void => {
    // After the end of the program, the pid may have been reused.
    if (pid !== undefined && !isOver) process.kill(pid, name);
  };
  const kill = async (): Promise<void> => {
    sendSignal('SIGKILL');
    await anyEnd;
  };
  return {
    pid: pid ?? 0,
    ended: anyEnd,
    kill,
    thaw: () => sendSignal('SIGCONT'),
    freeze: async () => {
      sendSignal('SIGSTOP');
      while (!isOver && pid !== undefined && !isStopped(pid)) await delay(5);
    },
    stop: async () => {
      sendSignal('SIGTERM');
      sendSignal('SIGCONT');
      const timer = new AbortController();
      const killAfterTimeout = delay(stopTimeoutMs, undefined, { signal: timer.signal }).then(kill, () => undefined);
      await anyEnd;
      timer.abort();
      await killAfterTimeout;
    },
  };
}

/** One of 16 million loopback addresses. A free port stays free, because no other program uses the same address. */
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
