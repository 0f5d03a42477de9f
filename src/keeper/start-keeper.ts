import { closeSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { type Command, type KeeperEnd, type Launch, launchProcess } from './launch.ts';
import { threadsOfKeeper } from './listening-socket.ts';
import { keeperFlags, outOfReachStatus } from './node-flags.ts';
import { KeeperError, outOfReach } from './protocol.ts';
import { peerCredentials } from './system-calls.ts';

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
  /** Left out: as a process beside this one. */
  readonly launch?: Launch;
}

export interface StartedKeeper {
  /** 0: in a container of its own. */
  readonly pid: number;
  /** Not told of one in a container of its own. */
  readonly ended: Promise<KeeperEnd>;
}

/** Longer than a keeper waits at the door of the one before and that one takes to hand over, together. */
const startMs = 30_000;
const lookMs = 10;

/** Beside this file, in the sources as in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
const program = join(import.meta.dirname, isSource ? 'main.ts' : 'keeper.mjs');

/**
 * Starts a keeper that outlives this process, and waits until it is the one that is found at its socket. A keeper that was
 * there before has handed everything over by then. Throws if it ends instead: what there was goes on.
 */
export async function startKeeper(options: StartOptions, signal: AbortSignal): Promise<StartedKeeper> {
  const { clock, socket, log, launch = launchProcess } = options;
  let known = fileAt(socket);
  const waiting = new AbortController();
  using limit = clock.deadline(startMs, signal);
  const launched = await launch(keeperCommand(options), AbortSignal.any([waiting.signal, limit.signal]));
  const { pid, ended } = launched;
  let over: { readonly by: KeeperEnd } | undefined;
  void ended.then((by) => {
    over = { by };
  });
  /** One that cannot be seen is known by the name: nobody but whoever is in charge takes it. */
  const isOurKeeper = (peer: number | undefined): boolean => peer !== undefined && (pid === undefined || peer === pid);
  try {
    for (;;) {
      // Whoever has the name now is asked once: it has little room for those who knock, and its successor is one of them.
      const there = fileAt(socket);
      const peer = there === known ? undefined : listenerPid(socket);
      if (isOurKeeper(peer)) return { pid: pid ?? 0, ended };
      if (peer !== undefined) known = there;
      if (over !== undefined) throw notStarted(over.by, log);
      await clock.sleep(lookMs, limit.signal);
    }
  } catch (cause) {
    // One that was put in charge since the last look stays: the one before has gone.
    if (fileAt(socket) !== known && isOurKeeper(listenerPid(socket))) return { pid: pid ?? 0, ended };
    await launched.kill();
    throw cause;
  } finally {
    waiting.abort();
  }
}

/** `pod`: see `pod.ts`. */
export function keeperCommand(
  { enter, socket, program: served, log, flags, env }: Omit<StartOptions, 'clock' | 'launch'>,
  pod?: string,
): Command {
  const own = pod === undefined ? [] : ['--pod', pod];
  const args = ['--socket', socket, '--program', served, '--log', log, ...own, '--', ...flags];
  const [file = process.execPath, ...rest] = [...enter, process.execPath, ...keeperFlags, program, ...args];
  return {
    words: [file, ...rest],
    env: { LC_ALL: 'C', ...compileCache(), ...env, UV_THREADPOOL_SIZE: String(threadsOfKeeper), MALLOC_ARENA_MAX: '2' },
  };
}

/** Node takes four times as long to compile the sources as to read them from its cache. For the bundle it makes no difference. */
function compileCache(): Readonly<Record<string, string>> {
  const folder = process.env['NODE_COMPILE_CACHE'];
  return isSource && folder !== undefined ? { NODE_COMPILE_CACHE: folder } : {};
}

function notStarted(by: KeeperEnd, log: string): KeeperError {
  if (by === outOfReachStatus) return outOfReach('the keeper does not hand over');
  const how = typeof by === 'number' ? `exit status ${by}` : (by ?? 'exit status unknown');
  return new KeeperError('not-started', `the keeper ended at once (${how}): see ${log}`);
}

/** Each keeper that takes the name brings a file of its own. */
function fileAt(path: string): string {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? '' : `${found.ino} ${found.ctimeNs}`;
}

/** Undefined: nobody, or it does not answer just now. 0: somebody in a process namespace that cannot be seen from here. */
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
