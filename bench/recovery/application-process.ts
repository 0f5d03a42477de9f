import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** An application that works on a mount continuously, in its own process. */
export interface Application extends AsyncDisposable {
  /** Resolves when it has completed a turn that began after the call. */
  progress(): Promise<void>;
  forget(): void;
  /** Milliseconds of its longest call since `forget`. */
  longest(): number;
  /** Ends it and returns what it saw. */
  end(): Promise<{ readonly errors: readonly string[]; readonly operations: number }>;
}

interface Turn {
  readonly turns: number;
  readonly operations: number;
  readonly ms: number;
  readonly error?: string;
}

/** The limit for a pause. A longer one means that the mount was lost. */
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
    // First the turn in progress ends, and then a complete one.
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
    // Not awaited, because the process may be blocked by its mount, which is removed next.
    [Symbol.asyncDispose]: () => {
      child.kill('SIGKILL');
      child.unref();
      return Promise.resolve();
    },
  };
}
