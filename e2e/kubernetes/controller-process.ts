import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { suspend } from '#testing/suspend.ts';
import { program } from '../stowage.ts';

/** `stowage controller` as a process of its own. */
export interface RunningController {
  readonly pid: number;
  readonly output: () => string;
  /** Resolves when the controller leads. Rejects if it ends before that. */
  untilLeading(): Promise<void>;
  /** Sends SIGKILL. */
  kill(): Promise<void>;
  /** Sends SIGSTOP. The process stays alive, but does nothing. */
  suspend(): Promise<void>;
  resume(): void;
  /** Resolves with the exit status when the controller has ended by itself. */
  ended(): Promise<number | null>;
  /** Sends SIGTERM and resolves with the exit status. */
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
  const onOutput = (chunk: string): void => {
    output += chunk;
    if (output.includes('stowage controller is the leader')) leading.resolve();
  };
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', onOutput);
  void ended.then(() => leading.reject(new Error(`the controller ended:\n${output}`)));
  return {
    pid: child.pid ?? 0,
    output: () => output,
    untilLeading: () => leading.promise,
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
    suspend: () => suspend(child.pid ?? 0),
    resume: () => void child.kill('SIGCONT'),
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

/**
 * Removes the holder of the Lease, so that the next controller leads without waiting until the Lease expires. The
 * annotations of the Lease stay: without its predecessor's record, a controller waits for the locks of its predecessor.
 */
export async function freeLease(cluster: Cluster, namespace = 'default'): Promise<void> {
  const namespaceArgs = ['--namespace', namespace];
  const names = (await cluster.kubectl('get', 'leases', '--output=name', ...namespaceArgs)).split('\n');
  const name = names.find((lease) => lease.endsWith('/stowage-controller'));
  if (name !== undefined)
    await cluster.kubectl('patch', name, '--type=merge', `--patch=${releasedLease}`, ...namespaceArgs);
}
const releasedLease = JSON.stringify({ spec: { holderIdentity: '' } });
