import { spawn } from 'node:child_process';
import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { createConnection } from './connection.ts';
import { hasMainThreadEnded, stuckThreads } from './killed-process.ts';
import { canKill, hasEnded, killProcess, openPidfd } from './system-calls.ts';
import type { ProcessHandle } from './worker.ts';

/** The descriptor of the keeper's socket in a process that a keeper started. */
export const keeperSocketFd = 3;

/** Almost all processes exit within a few ms. Only after this time are the threads inspected, twice. */
const inspectAfterMs = 200;
const pollMs = 50;

/** A process that cannot be killed is reported after this time. */
const outOfReachMs = 5_000;

/**
 * A process by its pidfd, which is closed with its last use. `outOfReach`: the process should end, does not, and cannot
 * be killed.
 */
export function processByPidfd(
  pidfd: number,
  clock: Clock,
  onOutOfReach: () => void = () => undefined,
): Omit<ProcessHandle, 'connection'> {
  let isClosed = false;
  const close = (): void => {
    if (!isClosed) closeSync(pidfd);
    isClosed = true;
  };
  return {
    end: async () => {
      if (isClosed) return;
      using _ = kill(pidfd) ? undefined : clock.after(outOfReachMs, onOutOfReach);
      await waitUntilGone(pidfd, clock);
      close();
    },
    isDying: () => !isClosed && hasMainThreadEnded(pidfd),
    isOutOfReach: () => !isClosed && !canKill(pidfd),
    forget: close,
  };
}

/** Resolves when a killed process has ended or can never run its program again (`killed-process.ts`). */
async function waitUntilGone(pidfd: number, clock: Clock): Promise<void> {
  const killedAt = clock.elapsed();
  // Usually less than a millisecond; child processes and memory do not delay it.
  for (let ms = 1; !hasEnded(pidfd) && clock.elapsed() - killedAt < inspectAfterMs; ms = Math.min(pollMs, ms * 2))
    await sleep(clock, ms);
  for (let before: string | undefined; !hasEnded(pidfd); ) {
    const stuck = stuckThreads(pidfd);
    if (stuck !== undefined && stuck === before) return;
    before = stuck;
    await sleep(clock, pollMs);
  }
}

/** False: another pid namespace or another user; then only its own exit can be awaited. */
function kill(pidfd: number): boolean {
  try {
    killProcess(pidfd);
    return true;
  } catch {
    return false;
  }
}

async function sleep(clock: Clock, ms: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  clock.after(ms, resolve);
  await promise;
}

export interface ChildOptions {
  readonly clock: Clock;
  /** Flags of Node. */
  readonly flags: readonly string[];
  /** The descriptor of stdout and stderr. */
  readonly log: number;
}

/** Starts one of our programs, which finds its end of the connection at `keeperSocket`. */
export function startChild(program: string, { clock, flags, log }: ChildOptions): ProcessHandle {
  const [ownEnd, childEnd] = socketPair();
  using childEndOwner = new DisposableStack();
  childEndOwner.defer(() => closeSync(childEnd));
  using cleanup = new DisposableStack();
  const connection = cleanup.adopt(createConnection(ownEnd, clock), (made) => made.close());
  const child = spawn(process.execPath, [...flags, program], {
    // Its own process group: signals to the keeper's group do not reach it.
    detached: true,
    stdio: ['ignore', log, log, childEnd],
  });
  // The closed connection reports it, too.
  child.on('error', () => undefined);
  child.unref();
  if (child.pid === undefined) throw new Error('the program could not be started');
  // Otherwise it would not be killed.
  cleanup.defer(() => child.kill('SIGKILL'));
  // The pid cannot have been reused: Node had no time to reap the process.
  const pidfd = openPidfd(child.pid);
  cleanup.move();
  return { connection, ...processByPidfd(pidfd, clock) };
}
