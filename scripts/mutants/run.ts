import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ownMounts } from '#testbed/mount-namespace.ts';
import type { MutantRunEvent } from './reporter.ts';
import type { Scratch } from './scratch.ts';

/** The result of a run of test files. */
export interface Run {
  readonly events: readonly MutantRunEvent[];
  readonly status: 'passed' | 'failed' | 'timeout';
  /** Mounts that the tests left behind. They ended with their mount namespace. */
  readonly leftMounts: readonly string[];
  readonly seconds: number;
}

export interface RunLimits {
  readonly limitSeconds: number;
  /** How many test files run in parallel. */
  readonly atOnce: number;
  readonly signal: AbortSignal;
}

/** How long hooks may clean up after the first failure. */
const graceMs = 20_000;
const pollMs = 200;

/**
 * Runs the test files in the scratch copy until the first failure. All processes that they started have ended when it
 * returns.
 */
export async function runTests(scratch: Scratch, files: readonly string[], limits: RunLimits): Promise<Run> {
  const since = performance.now();
  await Promise.all([scratch.eventsFile, scratch.leftFile].map((file) => rm(file, { force: true })));
  await using log = await open(scratch.logFile, 'w');
  const [program = '', ...args] = commandFor(scratch, files, limits.atOnce);
  const child = spawn(program, args, {
    cwd: scratch.root,
    env: environmentFor(scratch),
    stdio: ['ignore', log.fd, log.fd],
    detached: true,
  });
  const wasKilled = await waitForEnd(child, scratch, limits);
  limits.signal.throwIfAborted();
  const events = await eventsIn(scratch);
  const hasFailed = events.some(({ kind }) => kind === 'failed') || (!wasKilled && child.exitCode !== 0);
  return {
    events,
    status: hasFailed ? 'failed' : wasKilled ? 'timeout' : 'passed',
    leftMounts: JSON.parse((await textOf(scratch.leftFile)) || '[]'),
    seconds: (performance.now() - since) / 1000,
  };
}

function commandFor({ root, leftFile }: Scratch, files: readonly string[], atOnce: number): readonly string[] {
  const vitest = [
    process.execPath,
    join(root, 'node_modules', 'vitest', 'vitest.mjs'),
    'run',
    '--configLoader',
    'native',
  ];
  const reporter = join(import.meta.dirname, 'reporter.ts');
  const options = ['--bail=1', `--maxWorkers=${atOnce}`, `--reporter=${reporter}`, '--no-color'];
  const own = ownMounts();
  if (own === undefined) return [...vitest, ...options, ...files];
  // The end of `own`, with a PID namespace: when its first process ends, the kernel kills all others. That process is a
  // shell, because Node does not wait for orphans. The line does not end with "$@", because the shell would then become
  // that program.
  const processes = ['--pid', '--fork', '--kill-child', '--mount-proc', 'sh', '-c', '"$@"; exit $?', 'sh'];
  const node = [process.execPath, '--disable-warning=ExperimentalWarning'];
  return [
    ...own,
    ...processes,
    ...node,
    join(import.meta.dirname, 'inside.ts'),
    leftFile,
    ...vitest,
    ...options,
    ...files,
  ];
}

function environmentFor({ temporary, eventsFile }: Scratch): NodeJS.ProcessEnv {
  const { STOWAGE_SKIPS: _, STOWAGE_OUTCOME: __, ...others } = process.env;
  return { ...others, TMPDIR: temporary, STOWAGE_MUTANT_EVENTS: eventsFile };
}

/** Returns true if the run was killed. */
async function waitForEnd(
  child: ChildProcess,
  scratch: Scratch,
  { limitSeconds, signal }: RunLimits,
): Promise<boolean> {
  const over = new AbortController();
  const exit = once(child, 'exit').finally(() => over.abort());
  let deadline = performance.now() + limitSeconds * 1000;
  let hasFailed = false;
  while (!over.signal.aborted && performance.now() < deadline && !signal.aborted) {
    await delay(pollMs, undefined, { signal: over.signal }).catch(() => undefined);
    if (hasFailed || !(await eventsIn(scratch)).some(({ kind }) => kind === 'failed')) continue;
    hasFailed = true;
    deadline = Math.min(deadline, performance.now() + graceMs);
  }
  const wasKilled = !over.signal.aborted;
  // Even after a normal exit: without a PID namespace, processes of the group may remain.
  if (child.pid !== undefined) killGroup(child.pid);
  await exit;
  return wasKilled;
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // ESRCH: all processes have ended.
  }
}

async function eventsIn({ eventsFile }: Scratch): Promise<readonly MutantRunEvent[]> {
  const lines = (await textOf(eventsFile)).split('\n');
  // The text after the last line break is incomplete.
  return lines.slice(0, -1).map((line): MutantRunEvent => JSON.parse(line));
}

const textOf = async (file: string): Promise<string> => await readFile(file, 'utf8').catch(() => '');
