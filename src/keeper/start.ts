import { spawn } from 'node:child_process';
import { closeSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { threadsOfKeeper } from './door.ts';
import { keeperFlags } from './node-flags.ts';
import { KeeperError } from './protocol.ts';
import { peerOf } from './system.ts';

export interface StartOptions {
  readonly clock: Clock;
  /** The command that runs another one by exec(2), with fewer rights or in another network. */
  readonly enter: readonly string[];
  /** In a folder of its own, which belongs to the keeper's user. */
  readonly socket: string;
  /** Of a data path. */
  readonly program: string;
  readonly log: string;
  /** For the data path's Node. */
  readonly flags: readonly string[];
  /** Data paths get it, too. */
  readonly env: Readonly<Record<string, string>>;
}

export interface StartedKeeper {
  readonly pid: number;
  /** Its exit status; null if it was killed. */
  readonly ended: Promise<number | null>;
}

const startMs = 20_000;
const lookMs = 10;

/** Beside this file, in the sources as in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
const program = join(import.meta.dirname, isSource ? 'main.ts' : 'keeper.mjs');

/**
 * Starts a keeper that outlives this process, and waits until it is the one that is found at its socket. A keeper that was
 * there before has handed everything over by then. Throws if it ends instead: what there was goes on.
 */
export async function startKeeper(options: StartOptions, signal: AbortSignal): Promise<StartedKeeper> {
  const { clock, enter, socket, log, flags, env } = options;
  const args = ['--socket', socket, '--program', options.program, '--log', log, '--', ...flags];
  const [file = process.execPath, ...rest] = [...enter, process.execPath, ...keeperFlags, program, ...args];
  let known = fileAt(socket);
  const child = spawn(file, rest, {
    detached: true,
    stdio: 'ignore',
    // Never on a mount of its own, nor on one that somebody wants to unmount.
    cwd: '/',
    env: { LC_ALL: 'C', ...env, UV_THREADPOOL_SIZE: String(threadsOfKeeper), MALLOC_ARENA_MAX: '2' },
  });
  const { promise: ended, resolve: end } = Promise.withResolvers<number | null>();
  let isOver = false;
  const over = (status: number | null): void => {
    isOver = true;
    end(status);
  };
  child.once('error', () => over(null)).once('exit', over);
  child.unref();
  using limit = clock.deadline(startMs, signal);
  try {
    for (;;) {
      // Whoever has the name now is asked once: it has little room for those who knock, and its successor is one of them.
      const there = fileAt(socket);
      const pid = there === known ? 0 : whoListens(socket);
      if (pid !== 0 && pid === child.pid) return { pid, ended };
      if (pid !== 0) known = there;
      if (isOver) throw new KeeperError('not-started', `the keeper ended at once: see ${log}`);
      await clock.sleep(lookMs, limit.signal);
    }
  } catch (cause) {
    child.kill('SIGKILL');
    throw cause;
  }
}

/** Each keeper that takes the name brings a file of its own. */
function fileAt(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? '' : `${found.ino} ${found.ctimeNs}`;
}

/** 0: nobody, or it does not answer just now. */
function whoListens(path: string): number {
  try {
    const fd = connectTo(path);
    const { pid } = peerOf(fd);
    closeSync(fd);
    return pid;
  } catch {
    return 0;
  }
}
