import { spawn } from 'node:child_process';
import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { socketPair } from '#base/linux/socket-pair.ts';
import { createConnection } from './connection.ts';
import { hasMainThreadEnded, stuckThreads } from './killed-process.ts';
import { canKill, hasEnded, killProcess, openPidfd } from './system-calls.ts';
import type { ProcessHandle } from './worker.ts';

/** The number of the socket to the keeper, in a process that a keeper started. */
export const keeperSocket = 3;

/** Almost all end within a few. Only then are the threads looked at, twice. */
const usualExitMs = 200;
const lookMs = 50;

/** One that cannot be killed, and has not ended by itself for so long, is told of. */
const outOfReachMs = 5_000;

/** A process by its descriptor, which is closed with the last use of it. `outOfReach`: it is to end, does not, and cannot be killed. */
export function processByPidfd(
  pidfd: number,
  clock: Clock,
  outOfReach: () => void = () => undefined,
): Omit<ProcessHandle, 'connection'> {
  let isClosed = false;
  const close = (): void => {
    if (!isClosed) closeSync(pidfd);
    isClosed = true;
  };
  return {
    end: async () => {
      if (isClosed) return;
      using _ = kill(pidfd) ? undefined : clock.after(outOfReachMs, outOfReach);
      await waitUntilGone(pidfd, clock);
      close();
    },
    isDying: () => !isClosed && hasMainThreadEnded(pidfd),
    isOutOfReach: () => !isClosed && !canKill(pidfd),
    forget: close,
  };
}

/** After it was killed: it has ended, or nothing of its program will ever run again (`killed-process.ts`). */
async function waitUntilGone(pidfd: number, clock: Clock): Promise<void> {
  const killedAt = clock.elapsed();
  // It usually takes less than a millisecond; its child processes and its memory do not delay it.
  for (let ms = 1; !hasEnded(pidfd) && clock.elapsed() - killedAt < usualExitMs; ms = Math.min(lookMs, ms * 2))
    await pause(clock, ms);
  for (let before: string | undefined; !hasEnded(pidfd); ) {
    const stuck = stuckThreads(pidfd);
    if (stuck !== undefined && stuck === before) return;
    before = stuck;
    await pause(clock, lookMs);
  }
}

/** False: of another process namespace, or another user. Nothing but its own end can be waited for. */
function kill(pidfd: number): boolean {
  try {
    killProcess(pidfd);
    return true;
  } catch {
    return false;
  }
}

async function pause(clock: Clock, ms: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  clock.after(ms, resolve);
  await promise;
}

export interface ChildOptions {
  readonly clock: Clock;
  /** For Node itself. */
  readonly flags: readonly string[];
  /** Where it writes what it has to say. */
  readonly log: number;
}

/** Starts a program of ours, which finds the other end of its line at `keeperSocket`. */
export function startChild(program: string, { clock, flags, log }: ChildOptions): ProcessHandle {
  const [here, there] = socketPair();
  using given = new DisposableStack();
  given.defer(() => closeSync(there));
  using undone = new DisposableStack();
  const connection = undone.adopt(createConnection(here, clock), (made) => made.close());
  const child = spawn(process.execPath, [...flags, program], {
    // In a group of its own: what is meant for the keeper's group does not end it.
    detached: true,
    stdio: ['ignore', log, log, there],
  });
  // Told by the line, too.
  child.on('error', () => undefined);
  child.unref();
  if (child.pid === undefined) throw new Error('the program could not be started');
  // Nobody would end it.
  undone.defer(() => child.kill('SIGKILL'));
  // It cannot be somebody else's number: Node has not yet had the time to see that it ended.
  const pidfd = openPidfd(child.pid);
  undone.move();
  return { connection, ...processByPidfd(pidfd, clock) };
}
