import { closeSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { type Command, type KeeperEnd, type Launch, launchProcess } from './launch.ts';
import { keeperThreads } from './listening-socket.ts';
import { keeperFlags, outOfReachStatus } from './node-flags.ts';
import { KeeperError, outOfReach } from './protocol.ts';
import { peerCredentials } from './system-calls.ts';

export interface StartOptions {
  readonly clock: Clock;
  /** A command prefix that runs its arguments by exec(2), with fewer rights or in another network namespace. */
  readonly enter: readonly string[];
  /** In its own folder, which belongs to the keeper's user. */
  readonly socket: string;
  /** The data path's program. */
  readonly program: string;
  readonly log: string;
  /** Node flags of the data path. */
  readonly flags: readonly string[];
  /** Environment of the keeper and its data paths. */
  readonly env: Readonly<Record<string, string>>;
  /** Default: as a process beside this one. */
  readonly launch?: Launch;
}

export interface StartedKeeper {
  /** 0: it runs in its own container. */
  readonly pid: number;
  /** Never resolves for a keeper in its own container. */
  readonly ended: Promise<KeeperEnd>;
}

/** Longer than a keeper waits to connect to its predecessor and the handover takes, together. */
const startTimeoutMs = 30_000;
const pollMs = 10;

/** The program lies beside this file, in the sources and in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
const program = join(import.meta.dirname, isSource ? 'main.ts' : 'keeper.mjs');

/**
 * Starts a keeper that outlives this process, and waits until it is the one at the socket. A previous keeper has handed
 * everything over by then. Throws if the new one exits instead; the previous one then continues.
 */
export async function startKeeper(options: StartOptions, signal: AbortSignal): Promise<StartedKeeper> {
  const { clock, socket, log, launch = launchProcess } = options;
  let lastSocketFile = socketFileId(socket);
  const launchAbort = new AbortController();
  using limit = clock.deadline(startTimeoutMs, signal);
  const launched = await launch(keeperCommand(options), AbortSignal.any([launchAbort.signal, limit.signal]));
  const { pid, ended } = launched;
  let exit: { readonly by: KeeperEnd } | undefined;
  void ended.then((by) => {
    exit = { by };
  });
  /** A process that is not visible is recognized by the socket: only the keeper in charge publishes it. */
  const isOurKeeper = (peer: number | undefined): boolean => peer !== undefined && (pid === undefined || peer === pid);
  try {
    for (;;) {
      // Connect once per published socket: a keeper has few connections to spare, and its successor needs one.
      const socketFile = socketFileId(socket);
      const peer = socketFile === lastSocketFile ? undefined : listenerPid(socket);
      if (isOurKeeper(peer)) return { pid: pid ?? 0, ended };
      if (peer !== undefined) lastSocketFile = socketFile;
      if (exit !== undefined) throw notStarted(exit.by, log);
      await clock.sleep(pollMs, limit.signal);
    }
  } catch (cause) {
    // A keeper that took charge since the last check stays: the previous one is gone.
    if (socketFileId(socket) !== lastSocketFile && isOurKeeper(listenerPid(socket))) return { pid: pid ?? 0, ended };
    await launched.kill();
    throw cause;
  } finally {
    launchAbort.abort();
  }
}

/** `pod`: the pod's UID, see `pod.ts`. */
export function keeperCommand(
  { enter, socket, program: dataPathProgram, log, flags, env }: Omit<StartOptions, 'clock' | 'launch'>,
  pod?: string,
): Command {
  const podArgs = pod === undefined ? [] : ['--pod', pod];
  const args = ['--socket', socket, '--program', dataPathProgram, '--log', log, ...podArgs, '--', ...flags];
  const [file = process.execPath, ...rest] = [...enter, process.execPath, ...keeperFlags, program, ...args];
  return {
    words: [file, ...rest],
    env: { LC_ALL: 'C', ...compileCache(), ...env, UV_THREADPOOL_SIZE: String(keeperThreads), MALLOC_ARENA_MAX: '2' },
  };
}

/**
 * Node compiles the sources four times as slowly as it reads them from its cache. For the bundle it makes no
 * difference.
 */
function compileCache(): Readonly<Record<string, string>> {
  const folder = process.env['NODE_COMPILE_CACHE'];
  return isSource && folder !== undefined ? { NODE_COMPILE_CACHE: folder } : {};
}

function notStarted(by: KeeperEnd, log: string): KeeperError {
  if (by === outOfReachStatus) return outOfReach('the keeper does not hand over');
  const how = typeof by === 'number' ? `exit status ${by}` : (by ?? 'exit status unknown');
  return new KeeperError('not-started', `the keeper exited while starting (${how}): see ${log}`);
}

/** Each keeper publishes a new file, so this identifies the keeper at the path. */
function socketFileId(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? '' : `${found.ino} ${found.ctimeNs}`;
}

/**
 * Undefined: nothing listens, or it does not answer now. 0: a process in a pid namespace that is not visible from here.
 */
function listenerPid(path: string): number | undefined {
  try {
    const fd = connectTo(path);
    const { pid } = peerCredentials(fd);
    closeSync(fd);
    return pid;
  } catch {
    return undefined;
  }
}
