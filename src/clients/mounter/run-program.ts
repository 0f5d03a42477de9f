import { type ChildProcess, spawn } from 'node:child_process';
import { Socket } from 'node:net';
import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { HeldPath } from './held-path.ts';
import { runByVariable, runForVariable } from './orphaned-programs.ts';
import { installHint, searchPath, type Tool } from './tools.ts';

/** The program ran and failed. The caller interprets the failure and keeps this as the cause. */
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
  /** Default: 30 s. */
  readonly timeoutMs?: number;
  /**
   * For a program that must not be killed half-way, because it rewrites a file system: at the deadline or abort only the wait ends. Before
   * running the next such program, the caller must check that this one has ended.
   */
  readonly letFinish?: boolean;
  readonly env?: Readonly<Record<string, string>>;
  /** Descriptors that the program inherits as `descriptorPath(0)`, `descriptorPath(1)` and so on. In its error messages they are replaced by their paths. */
  readonly inherited?: readonly InheritedDescriptor[];
}

/** A descriptor that the program inherits, and its name. */
type InheritedDescriptor = Pick<HeldPath, 'fd' | 'path'>;

export const descriptorPath = (index: number): string => `/proc/self/fd/${3 + index}`;

/** Runs a program without a shell and returns its output. */
export type RunProgram = (tool: Tool, args: readonly string[], scope: Scope, options?: RunOptions) => Promise<string>;

const maxStdoutBytes = 256 * 1024;
const maxStderrBytes = 16 * 1024;
/** A killed program in uninterruptible sleep ends only when the kernel lets it. Don't wait for that. */
const killGraceMs = 2_000;

/** `owner`: the state folder of this Stowage. */
export function createRunProgram(clock: Clock, path = searchPath(), owner = ''): RunProgram {
  return async (tool, args, scope, options = {}) => {
    scope.signal.throwIfAborted();
    const { timeoutMs = 30_000, inherited = [] } = options;
    using limit = clock.deadline(timeoutMs, scope.signal);
    const child = spawn(tool, args, {
      // A program that must finish gets no stdout pipe: it would die of SIGPIPE if Stowage ended first.
      stdio: ['ignore', options.letFinish === true ? 'ignore' : 'pipe', 'pipe', ...inherited.map(({ fd }) => fd)],
      // In a session of its own, so that Ctrl-C reaches only Stowage, which then unmounts in order.
      detached: true,
      env: {
        ...options.env,
        PATH: path,
        LC_ALL: 'C',
        ...(options.letFinish === true ? {} : { [runByVariable]: String(process.pid), [runForVariable]: owner }),
        // util-linux since 2.39 uses move_mount(2), which does not follow the link descriptorPath(0); mount(2) does.
        ...(inherited.length > 0 ? { LIBMOUNT_FORCE_MOUNT2: 'always' } : {}),
      },
    });
    const output = collect(child);
    const end = await waitForEnd(child, limit.signal, options.letFinish === true);
    if (end === 'stopped') {
      if (!(limit.signal.reason instanceof DeadlineExceeded) || scope.signal.aborted) throw limit.signal.reason;
      throw tooSlow(tool, timeoutMs, limit.signal.reason);
    }
    if (end instanceof Error) throw notStarted(tool, end);
    if (end.exit === 0) return output.stdout();
    throw new CommandFailed(tool, end.exit, end.signal, replaceDescriptors(output.stderr(), inherited));
  };
}

const replaceDescriptors = (text: string, inherited: readonly InheritedDescriptor[]): string =>
  inherited.reduce((message, { path }, index) => message.replaceAll(descriptorPath(index), () => path), text);

type ProgramEnd = { readonly exit: number | undefined; readonly signal: string | null } | Error | 'stopped';

async function waitForEnd(child: ChildProcess, signal: AbortSignal, letFinish: boolean): Promise<ProgramEnd> {
  const { promise, resolve } = Promise.withResolvers<ProgramEnd>();
  let graceTimer: NodeJS.Timeout | undefined;
  const abandon = (): void => {
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
    graceTimer = setTimeout(abandon, killGraceMs);
  };
  child.once('error', (error) => resolve(error));
  child.once('close', (code, by) => resolve(signal.aborted ? 'stopped' : { exit: code ?? undefined, signal: by }));
  using _ = onAbort(signal, stop);
  try {
    return await promise;
  } finally {
    clearTimeout(graceTimer);
  }
}

/** Keeps the beginning of stdout and the end of stderr. */
function collect(child: ChildProcess): { stdout(): string; stderr(): string } {
  const stdoutChunks: Buffer[] = [];
  let size = 0;
  let stderrTail: Buffer = Buffer.alloc(0);
  child.stdout?.on('data', (chunk: Buffer) => {
    if (size < maxStdoutBytes) stdoutChunks.push(chunk.subarray(0, maxStdoutBytes - size));
    size += chunk.length;
  });
  child.stderr?.on('data', (chunk: Buffer) => {
    stderrTail = Buffer.concat([stderrTail, chunk]).subarray(-maxStderrBytes);
  });
  return { stdout: () => Buffer.concat(stdoutChunks).toString(), stderr: () => stderrTail.toString() };
}

/** Programs print the reason last; `mount` adds a hint about dmesg after it. */
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
    action: 'Check for a disk or a server that does not answer (dmesg | tail), then retry. Retrying is safe.',
    cause,
  });
}

function notStarted(tool: Tool, cause: Error): StowageError {
  if (isErrno(cause, 'ENOENT')) {
    return new StowageError(`the program ${tool} is not installed`, {
      code: 'unsupported',
      reason: 'tool-missing',
      action: installHint(tool),
      cause,
    });
  }
  return new StowageError(`the program ${tool} could not be started: ${cause.message}`, {
    code: 'unavailable',
    reason: 'tool-not-started',
    action: 'Check what this machine ran out of (memory, processes, open files), then retry.',
    cause,
  });
}
