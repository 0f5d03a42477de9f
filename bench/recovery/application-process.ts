import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** A process that works on a mount continuously. */
export interface Application extends AsyncDisposable {
  /** Resolves when the application has completed a turn that began after this call. */
  progress(): Promise<void>;
  forget(): void;
  /** The duration of the longest call since `forget`, in milliseconds. */
  longest(): number;
  /** Ends the application and returns its errors and the number of its operations. */
  end(): Promise<{ readonly errors: readonly string[]; readonly operations: number }>;
}

interface Turn {
  readonly turns: number;
  readonly operations: number;
  readonly ms: number;
  readonly error?: string;
}

/** The limit for a pause. A longer pause means that the mount was lost. */
const timeoutMs = 30_000;

export async function startApplication(folder: string, signal: AbortSignal): Promise<Application> {
  const program = fileURLToPath(new URL('application.ts', import.meta.url));
  const child = spawn(process.execPath, [program, folder], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const errors: string[] = [];
  let last: Turn = { turns: 0, operations: 0, ms: 0 };
  let longest = 0;
  let nextReport = Promise.withResolvers<void>();
  createInterface({ input: child.stdout }).on('line', (line) => {
    last = JSON.parse(line) as Turn;
    longest = Math.max(longest, last.ms);
    if (last.error !== undefined) errors.push(last.error);
    nextReport.resolve();
    nextReport = Promise.withResolvers();
  });

  async function progress(): Promise<void> {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    const { promise: late, reject } = Promise.withResolvers<never>();
    late.catch(() => undefined);
    limit.addEventListener('abort', () => reject(limit.reason), { once: true });
    // The turn in progress must end, and then a complete one.
    for (const minTurns = last.turns + 2; last.turns < minTurns; ) await Promise.race([nextReport.promise, late]);
  }

  await progress();
  return {
    progress,
    forget: () => {
      longest = 0;
    },
    longest: () => longest,
    end: async () => {
      child.stdin.end();
      await Promise.race([exited, delay(timeoutMs, undefined, { ref: false })]);
      return { errors, operations: last.operations };
    },
    // Not awaited: the process may be blocked by its mount, which is removed next.
    [Symbol.asyncDispose]: () => {
      child.kill('SIGKILL');
      child.unref();
      return Promise.resolve();
    },
  };
}
