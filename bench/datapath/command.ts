import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';

export interface CommandResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly seconds: number;
}

export interface CommandOptions {
  readonly cwd?: string;
  readonly timeoutMs?: number;
}

const defaultTimeoutMs = 180_000;

/**
 * Runs a program on a mount. A process that waits for a mount without a server can't be killed, so on a timeout or an
 * abort this function returns without waiting for the process. The process ends when the mount is removed.
 */
export async function command(
  [file, ...args]: readonly [string, ...string[]],
  signal: AbortSignal,
  { timeoutMs = defaultTimeoutMs, ...options }: CommandOptions = {},
): Promise<CommandResult> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
  limit.throwIfAborted();
  const began = performance.now();
  const child = spawn(file, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, LC_ALL: 'C' },
    ...options,
  });
  const { promise: ended, resolve, reject } = Promise.withResolvers<number | null>();
  child.once('error', reject).once('exit', resolve);
  const giveUp = (): void => {
    child.kill('SIGKILL');
    child.unref();
    child.stdout.destroy();
    child.stderr.destroy();
    reject(limit.reason);
  };
  limit.addEventListener('abort', giveUp, { once: true });
  const output = Promise.all([text(child.stdout), text(child.stderr)]);
  output.catch(() => undefined);
  try {
    const status = await ended;
    const seconds = (performance.now() - began) / 1000;
    const [stdout, stderr] = await output;
    if (status !== 0) throw new Error(`${file} ${args.join(' ')} ended with ${status}: ${stderr.slice(-500)}`);
    return { stdout, stderr, seconds };
  } finally {
    limit.removeEventListener('abort', giveUp);
  }
}
