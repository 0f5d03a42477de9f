import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { program } from '../stowage.ts';

/** `stowage controller` in a process of its own. */
export interface RunningController {
  readonly pid: number;
  readonly output: () => string;
  /** Resolves when it leads; rejects when it ends before. */
  leads(): Promise<void>;
  /** At once. */
  kill(): Promise<void>;
  /** Resolves when it has ended by itself, with its exit status. */
  ended(): Promise<number | null>;
  /** SIGTERM; gives the exit status. */
  stop(): Promise<number | null>;
}

export function startController(cluster: Cluster, folder: string, ...more: readonly string[]): RunningController {
  mkdirSync(folder, { recursive: true });
  const words = ['--kubeconfig', cluster.kubeconfig, '--namespace', 'default', '--state', join(folder, 'state')];
  const child = spawn(program, ['controller', ...words, '--log-level', 'info', ...more], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = once(child, 'close');
  const leading = Promise.withResolvers<void>();
  leading.promise.catch(() => undefined);
  let output = '';
  const read = (chunk: string): void => {
    output += chunk;
    if (output.includes('stowage controller leads')) leading.resolve();
  };
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', read);
  void ended.then(() => leading.reject(new Error(`the controller ended:\n${output}`)));
  return {
    pid: child.pid ?? 0,
    output: () => output,
    leads: () => leading.promise,
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
    ended: async () => {
      await ended;
      return child.exitCode;
    },
    stop: async () => {
      child.kill('SIGTERM');
      await ended;
      return child.exitCode;
    },
  };
}
