import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { keeperFlags } from '#keeper/node-flags.ts';
import { slaveMounts } from '#testbed/mount-namespace.ts';
import { eventually } from './keeper-process.ts';

/** A keeper and its data paths in a PID namespace, like a pod. The keeper is process 1, so all others end with it. */
export interface KeeperPod {
  /** The pid in this process's namespace. */
  readonly pid: number;
  /** Resolves when all processes of the pod have ended. */
  readonly ended: Promise<unknown>;
  /** Kills process 1. The kernel ends all other processes of the namespace first. */
  kill(): Promise<void>;
}

export interface KeeperPodOptions {
  readonly socket: string;
  readonly program: string;
  readonly user: number;
  readonly uid: string;
  readonly log: string;
}

const keeper = join(import.meta.dirname, '..', '..', 'keeper', 'main.ts');

export async function startKeeperPod({ socket, program, user, uid, log }: KeeperPodOptions): Promise<KeeperPod> {
  const rights = [
    'setpriv',
    `--reuid=${user}`,
    `--regid=${user}`,
    '--clear-groups',
    '--no-new-privs',
    '--bounding-set=-all',
  ];
  const node = [process.execPath, ...keeperFlags, keeper, '--socket', socket, '--program', program, '--log', log];
  const words = [
    '--pid',
    '--fork',
    ...slaveMounts,
    '--mount-proc',
    '--kill-child',
    '--',
    ...rights,
    ...node,
    '--pod',
    uid,
  ];
  const child = spawn('unshare', words, {
    stdio: 'ignore',
    cwd: '/',
    env: { PATH: process.env['PATH'], LC_ALL: 'C', UV_THREADPOOL_SIZE: '24', STOWAGE_VERSION: 'test' },
  });
  const ended = once(child, 'exit');
  const children = `/proc/${child.pid}/task/${child.pid}/children`;
  const first = await eventually(
    () => Number(existsSync(children) ? readFileSync(children, 'utf8') : 0),
    (pid) => pid > 0,
  );
  return {
    pid: first,
    ended,
    kill: async () => {
      try {
        process.kill(first, 'SIGKILL');
      } catch {
        // The process has already ended.
      }
      await ended;
    },
  };
}
