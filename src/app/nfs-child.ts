import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Clock } from '#base/clock.ts';
import { asJsonObject, jsonIn } from '#base/json.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';

export interface NfsChildOptions {
  /** The command of an NFS server that sends a message over IPC when it is ready. */
  readonly command: readonly [string, ...string[]];
  readonly env?: Readonly<Record<string, string>>;
  readonly clock: Clock;
  readonly log: Log;
  /** Called each time the server gets ready. */
  readonly onReady: () => void;
  /** Called when the server has ended, with `problem` set; it gets restarted. */
  readonly onEnd?: () => void;
}

/** The NFS server in a child process, restarted whenever it ends. */
export interface NfsChild extends AsyncDisposable {
  /** Why it does not run. Undefined: it runs. */
  readonly problem: StowageError | undefined;
  readonly pid: number | undefined;
}

const minBackoffMs = 250;
const maxBackoffMs = 30_000;
/** A server that ran for this long did not fail at its start, so the back-off is reset. */
const minSteadyRunMs = 30_000;
const stopTimeoutMs = 5_000;

/** The last error that the server printed: probably why it ended. */
interface PrintedError {
  readonly why: string;
  readonly action: string;
}

export function startNfsChild({ command, env, clock, log, onReady, onEnd }: NfsChildOptions): NfsChild {
  const stopping = new AbortController();
  let child: ChildProcess | undefined;
  let problem: StowageError | undefined = notStarted();

  async function runOnce(): Promise<void> {
    const [program, ...args] = command;
    // In a process group of its own, so that Ctrl-C does not end it before us.
    child = spawn(program, args, {
      detached: true,
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: { ...process.env, ...env },
    });
    child.once('message', () => {
      problem = undefined;
      log.info('the NFS server is running', { pid: child?.pid });
      onReady();
    });
    const said = forwardOutput(child, log);
    const how = await waitForExit(child);
    child = undefined;
    problem = serverEnded(how, await said);
    onEnd?.();
  }

  async function keepRunning(): Promise<void> {
    let waitMs = minBackoffMs;
    while (!stopping.signal.aborted) {
      const began = clock.elapsed();
      await runOnce();
      if (stopping.signal.aborted) return;
      if (clock.elapsed() - began >= minSteadyRunMs) waitMs = minBackoffMs;
      const { message, action } = problem ?? notStarted();
      log.warn('restarting the NFS server', { why: message, action, afterMs: waitMs });
      await clock.sleep(waitMs, stopping.signal).catch(() => undefined);
      waitMs = Math.min(waitMs * 2, maxBackoffMs);
    }
  }

  const running = keepRunning();
  return {
    get problem() {
      return problem;
    },
    get pid() {
      return child?.pid;
    },
    [Symbol.asyncDispose]: async () => {
      stopping.abort();
      child?.kill('SIGTERM');
      if (!(await endsWithin(running, stopTimeoutMs, clock))) child?.kill('SIGKILL');
      await running;
    },
  };
}

async function waitForExit(child: ChildProcess): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  child.once('error', (cause) => resolve(cause.message));
  child.once('exit', (status, signal) => resolve(signal === null ? `status ${status}` : String(signal)));
  return await promise;
}

/** Forwards its log lines, and returns its last error. */
async function forwardOutput(child: ChildProcess, log: Log): Promise<PrintedError | undefined> {
  let last: PrintedError | undefined;
  if (child.stderr === null) return undefined;
  const lines = createInterface({ input: child.stderr });
  for await (const line of lines) {
    const { msg, detail, reason, action, level: _level, time: _time, ...facts } = asJsonObject(jsonIn(line)) ?? {};
    if (typeof msg === 'string') log.warn(msg, { ...facts, by: 'the NFS server' });
    else if (typeof detail === 'string') last = { why: detail, action: actionFor(reason, action) };
    // In a stack trace, the line that names the error.
    else if (/Error\b/.test(line)) last ??= { why: line.trim(), action: '' };
  }
  return last;
}

/** The server's own advice is for people who started it themselves. */
function actionFor(reason: unknown, action: unknown): string {
  if (reason === 'nfs-port-in-use')
    return 'Stop the program that uses it, or choose another port: stowage up --nfs PORT';
  return typeof action === 'string' ? action : '';
}

function notStarted(): StowageError {
  return new StowageError('the embedded NFS server is not running yet', {
    code: 'unavailable',
    reason: 'nfs-server-starting',
    action: 'Try again in a moment.',
  });
}

function serverEnded(how: string, said: PrintedError | undefined): StowageError {
  return new StowageError(`the embedded NFS server is not running: ${said?.why ?? `it exited with ${how}`}`, {
    code: 'unavailable',
    reason: 'nfs-server-down',
    action: said?.action || 'Stowage restarts it automatically. For details, see the log of stowage up.',
  });
}
