import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** An application that works on a mount all the time, in a process of its own. */
export interface Application extends AsyncDisposable {
  /** Resolves when it has done a whole turn that began after now. */
  progress(): Promise<void>;
  forget(): void;
  /** Milliseconds of its longest call since `forget`. */
  longest(): number;
  /** What it saw until now, when it has ended. */
  end(): Promise<{ readonly errors: readonly string[]; readonly operations: number }>;
}

interface Turn {
  readonly turns: number;
  readonly operations: number;
  readonly ms: number;
  readonly error?: string;
}

/** No pause may be longer: who waits so long has lost his mount. */
const timeoutMs = 30_000;

export async function startApplication(folder: string, signal: AbortSignal): Promise<Application> {
  const program = fileURLToPath(new URL('application.ts', import.meta.url));
  const child = spawn(process.execPath, [program, folder], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const errors: string[] = [];
  let last: Turn = { turns: 0, operations: 0, ms: 0 };
  let longest = 0;
  let told = Promise.withResolvers<void>();
  createInterface({ input: child.stdout }).on('line', (line) => {
    last = JSON.parse(line) as Turn;
    longest = Math.max(longest, last.ms);
    if (last.error !== undefined) errors.push(last.error);
    told.resolve();
    told = Promise.withResolvers();
  });

  async function progress(): Promise<void> {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    const { promise: late, reject } = Promise.withResolvers<never>();
    late.catch(() => undefined);
    limit.addEventListener('abort', () => reject(limit.reason), { once: true });
    // The turn that is under way ends, and then a whole one.
    for (const unlessAborted = last.turns + 2; last.turns < unlessAborted; ) await Promise.race([told.promise, late]);
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
    // Not waited for: it may be one that waits for its mount, which goes next.
    [Symbol.asyncDispose]: () => {
      child.kill('SIGKILL');
      child.unref();
      return Promise.resolve();
    },
  };
}
