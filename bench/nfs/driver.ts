import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { repository } from '#testbed/component.ts';
import { component } from '#testbed/components.ts';
import type { NfsServer } from '#testbed/nfs-server.ts';
import type { Answer, Task } from './operations.ts';

/** A program that makes NFS calls on command, in its own process. */
export interface Driver extends AsyncDisposable {
  measure(task: Task, ms: number): Promise<Answer>;
  /** Sends a line and returns the answer. `ms` is the expected duration. */
  request<T>(line: string, ms: number): Promise<T>;
}

export interface Target extends Pick<NfsServer, 'host' | 'nfsPort' | 'mountPort'> {
  readonly path: string;
}

/** Added to the requested time, for calls in flight and clean-up. */
const timeoutMs = 60_000;

/** `tree`: the checkout to run, if it is not this one. */
export function startOurs(target: Target, folder: string, signal: AbortSignal, tree = repository): Driver {
  const program = fileURLToPath(new URL('client.ts', import.meta.url));
  return start([process.execPath, join(tree, relative(repository, program))], target, folder, signal);
}

/** Makes volumes through a store, or with the same calls without a store. */
export function startVolumes(side: 'store' | 'bare', target: Target, signal: AbortSignal): Driver {
  const program = fileURLToPath(new URL('volumes.ts', import.meta.url));
  return start([process.execPath, program, side], target, side, signal);
}

/** The tasks of the data path benchmark as NFS calls. */
export function startRaw(server: Omit<Target, 'path'>, signal: AbortSignal): Driver {
  const program = fileURLToPath(new URL('../datapath/raw.ts', import.meta.url));
  return start([process.execPath, program], { ...server, path: '/' }, '', signal);
}

export function startLibnfs(target: Target, folder: string, signal: AbortSignal): Driver {
  const { tool, probe, command } = component('libnfs-bench');
  const why = probe();
  if (why !== undefined || tool === undefined) throw new Error(`${why}. Get it: ${command}`);
  return start([tool()], target, folder, signal);
}

function start(
  [program, ...args]: readonly [string, ...string[]],
  { host, nfsPort, mountPort, path }: Target,
  folder: string,
  signal: AbortSignal,
): Driver {
  const child = spawn(program, [...args, host, `${nfsPort}`, `${mountPort}`, path, folder], {
    stdio: ['pipe', 'pipe', 'inherit'],
    signal,
    killSignal: 'SIGKILL',
  });
  // The missing answer then reports the error.
  child.on('error', () => undefined);
  child.stdin.on('error', () => undefined);
  const answers = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const ask = async <T>(line: string, ms: number): Promise<T> => {
    child.stdin.write(`${line}\n`);
    const late = setTimeout(() => child.kill('SIGKILL'), ms + timeoutMs);
    const { value, done } = await answers.next();
    clearTimeout(late);
    signal.throwIfAborted();
    if (done === true) throw new Error(`${program} ended, or was too slow, at: ${line}`);
    return JSON.parse(value) as T;
  };
  return {
    request: ask,
    measure: ({ operation, inFlight }, ms) => ask<Answer>(`${operation} ${inFlight} ${ms}`, ms),
    [Symbol.asyncDispose]: () => end(child),
  };
}

async function end(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGKILL');
  await exit;
}
