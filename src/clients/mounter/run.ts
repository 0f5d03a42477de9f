import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:net';
import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { HeldPath } from './held-path.ts';
import { runBy, runFor } from './settle.ts';
import { installation, searchPath, type Tool } from './tools.ts';

/** The program ran and said no. What that means is for the caller to say; this is the cause it keeps. */
export class CommandFailed extends Error {
  override readonly name = 'CommandFailed';
  readonly exit: number | undefined;
  readonly stderr: string;
  constructor(command: string, exit: number | undefined, signal: string | null, stderr: string) {
    super(`${command}: ${lastLine(stderr) ?? (signal === null ? `exit status ${exit}` : `ended by ${signal}`)}`);
    this.exit = exit;
    this.stderr = stderr;
  }
}

export interface RunOptions {
  /** 30 s unless told. */
  readonly deadline?: number;
  /**
   * For a program that must not be stopped half-way (it rewrites a file system): the wait ends at the deadline or the
   * signal, the program goes on. Who starts the next one must look for it first.
   */
  readonly letFinish?: boolean;
  readonly env?: Readonly<Record<string, string>>;
  /** Places that the program finds at `inChild(0)`, `inChild(1)` and so on; its complaints call them by their names. */
  readonly holding?: readonly Held[];
}

/** A descriptor that the program inherits, and its name. */
type Held = Pick<HeldPath, 'fd' | 'path'>;

export const inChild = (index: number): string => `/proc/self/fd/${3 + index}`;

/** Runs a program, never a shell, and gives what it printed. */
export type Run = (tool: Tool, args: readonly string[], scope: Scope, options?: RunOptions) => Promise<string>;

const outputLimit = 256 * 1024;
const errorLimit = 16 * 1024;
/** A killed program in uninterruptible sleep ends when the kernel lets it; nobody waits for that. */
const killGrace = 2_000;

/** `owner`: the state folder of the Stowage that runs them. */
export function createRun(clock: Clock, path = searchPath(), owner = ''): Run {
  return async (tool, args, scope, options = {}) => {
    scope.signal.throwIfAborted();
    const { deadline: ms = 30_000, holding = [] } = options;
    using limit = clock.deadline(ms, scope.signal);
    const child = spawn(tool, args, {
      // What must finish must not die of a closed pipe when Stowage ends first: it prints to nobody.
      stdio: ['ignore', options.letFinish === true ? 'ignore' : 'pipe', 'pipe', ...holding.map(({ fd }) => fd)],
      // A session of its own: Ctrl-C in the terminal is for Stowage, which then unmounts in order.
      detached: true,
      env: {
        ...options.env,
        PATH: path,
        LC_ALL: 'C',
        ...(options.letFinish === true ? {} : { [runBy]: String(process.pid), [runFor]: owner }),
        // move_mount(2), which util-linux uses since 2.39, does not follow inChild(0) to where it leads; mount(2) does.
        ...(holding.length > 0 ? { LIBMOUNT_FORCE_MOUNT2: 'always' } : {}),
      },
    });
    const output = collect(child);
    const end = await ended(child, limit.signal, options.letFinish === true);
    if (end === 'stopped') {
      if (!(limit.signal.reason instanceof DeadlineExceeded) || scope.signal.aborted) throw limit.signal.reason;
      throw tooSlow(tool, ms, limit.signal.reason);
    }
    if (end instanceof Error) throw notStarted(tool, end);
    if (end.exit === 0) return output.stdout();
    throw new CommandFailed(tool, end.exit, end.signal, byName(output.stderr(), holding));
  };
}

const byName = (text: string, holding: readonly Held[]): string =>
  holding.reduce((said, { path }, index) => said.replaceAll(inChild(index), () => path), text);

type End = { readonly exit: number | undefined; readonly signal: string | null } | Error | 'stopped';

async function ended(child: ChildProcess, signal: AbortSignal, letFinish: boolean): Promise<End> {
  const { promise, resolve } = Promise.withResolvers<End>();
  let grace: NodeJS.Timeout | undefined;
  const letGo = (): void => {
    child.unref();
    child.stdout?.destroy();
    child.stderr?.destroy();
    resolve('stopped');
  };
  const stop = (): void => {
    if (letFinish) {
      child.unref();
      if (child.stderr instanceof Socket) child.stderr.unref();
      resolve('stopped');
      return;
    }
    child.kill('SIGKILL');
    grace = setTimeout(letGo, killGrace);
  };
  child.once('error', (error) => resolve(error));
  child.once('close', (code, by) => resolve(signal.aborted ? 'stopped' : { exit: code ?? undefined, signal: by }));
  using _ = onAbort(signal, stop);
  try {
    return await promise;
  } finally {
    clearTimeout(grace);
  }
}

/** The beginning of what it printed and the end of what it complained about; the rest is read and dropped. */
function collect(child: ChildProcess): { stdout(): string; stderr(): string } {
  const printed: Buffer[] = [];
  let size = 0;
  let complaints: Buffer = Buffer.alloc(0);
  child.stdout?.on('data', (chunk: Buffer) => {
    if (size < outputLimit) printed.push(chunk.subarray(0, outputLimit - size));
    size += chunk.length;
  });
  child.stderr?.on('data', (chunk: Buffer) => {
    complaints = Buffer.concat([complaints, chunk]).subarray(-errorLimit);
  });
  return { stdout: () => Buffer.concat(printed).toString(), stderr: () => complaints.toString() };
}

/** Programs say the reason last; `mount` adds a hint to look into dmesg, which is not it. */
function lastLine(text: string): string | undefined {
  return text
    .split('\n')
    .map((line) => line.trim())
    .findLast((line) => line !== '' && !line.startsWith('dmesg(1)'));
}

function tooSlow(tool: Tool, ms: number, cause: Error): StowageError {
  return new StowageError(`${tool} did not finish within ${Math.round(ms / 1000)} s`, {
    code: 'deadline',
    reason: 'command-deadline',
    action: 'Look for a disk or a server that does not answer (dmesg | tail), then repeat; repeating is safe.',
    cause,
  });
}

function notStarted(tool: Tool, cause: Error): StowageError {
  if (isErrno(cause, 'ENOENT')) {
    return new StowageError(`the program ${tool} is not installed`, {
      code: 'unsupported',
      reason: 'tool-missing',
      action: installation(tool),
      cause,
    });
  }
  return new StowageError(`the program ${tool} could not be started: ${cause.message}`, {
    code: 'unavailable',
    reason: 'tool-not-started',
    action: 'Look for what this machine ran out of (memory, processes, open files), then repeat.',
    cause,
  });
}
