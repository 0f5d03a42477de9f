import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

export interface Server extends AsyncDisposable {
  readonly socket: string;
  /** Milliseconds from the start of the process to the ready line. */
  readonly readyMs: number;
  /** Resident memory in MB after it has settled. */
  restingMemory(signal: AbortSignal): Promise<number>;
  /** Sends SIGKILL. */
  kill(): Promise<void>;
}

const program = fileURLToPath(new URL('../bin/stowage', import.meta.url));

/**
 * Starts Stowage with its state, socket and store in `folder`. It listens on that socket only. `more`: further
 * arguments of `up`.
 */
export async function startServer(folder: string, signal: AbortSignal, more: readonly string[] = []): Promise<Server> {
  const socket = join(folder, 'api.sock');
  const began = performance.now();
  const words = ['up', '--state', join(folder, 'state'), '--socket', socket, '--listen', 'none', ...more];
  const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    await ready(child, AbortSignal.any([signal, AbortSignal.timeout(30_000)]));
  } catch (cause) {
    await end(child);
    throw new Error('the server did not become ready', { cause });
  }
  return {
    socket,
    readyMs: performance.now() - began,
    restingMemory: (stop) => restingMemory(child, stop),
    kill: async () => {
      const exit = once(child, 'exit');
      child.kill('SIGKILL');
      await exit;
    },
    [Symbol.asyncDispose]: () => end(child),
  };
}

async function ready(child: ChildProcess, signal: AbortSignal): Promise<void> {
  if (child.stdout === null) throw new Error('no output to read');
  let found = false;
  for await (const line of createInterface({ input: child.stdout, signal })) {
    found = line.startsWith('stowage ready');
    if (found) break;
  }
  signal.throwIfAborted();
  if (!found) throw new Error('it ended before it was ready');
  // Discards the remaining output, because a full pipe would block the program. Leaving the loop has paused the stream.
  child.stdout.resume();
}

async function end(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), 15_000);
  await exit;
  clearTimeout(timer);
}

const sampleMs = 250;
const defaultQuietMs = 3_000;

/**
 * The minimum of many samples. Returns when no smaller one was seen for a while, because the garbage collector runs
 * some time after the work.
 */
export async function restingMemory(
  child: Pick<ChildProcess, 'pid'>,
  signal: AbortSignal,
  quietMs = defaultQuietMs,
): Promise<number> {
  const quietSamples = quietMs / sampleMs;
  const mostSamples = 10 * quietSamples;
  let least = Number.POSITIVE_INFINITY;
  for (let quiet = 0, samples = 0; quiet < quietSamples && samples < mostSamples; quiet++, samples++) {
    const now = await residentMemory(child);
    // A difference of one page counts as no change.
    if (now < least - 0.1) quiet = 0;
    least = Math.min(least, now);
    await sleep(sampleMs, undefined, { signal });
  }
  return least;
}

async function residentMemory(child: Pick<ChildProcess, 'pid'>): Promise<number> {
  const status = await readFile(`/proc/${child.pid}/status`, 'utf8');
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1];
  if (kib === undefined) throw new Error(`process ${child.pid} has ended`);
  return (Number(kib) * 1024) / 1e6;
}
