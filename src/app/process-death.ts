import { readFile, readlink } from 'node:fs/promises';
import process from 'node:process';
import { isErrno } from '#base/errno.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { pods } from '#wire/kube/resources.ts';
import type { Pod } from '#wire/kube/types.ts';
import type { ControllerProcess, KernelProcess } from './controller-registry.ts';
import { bootId } from './state-folder.ts';

/** Identifies this process on its kernel. Undefined: the system does not reveal enough to distinguish processes. */
export async function ownKernelProcess(): Promise<KernelProcess | undefined> {
  const { pid } = process;
  const boot = await bootId();
  const readLink = (path: string): Promise<string | undefined> => readlink(path).catch(() => undefined);
  const namespace = await readLink('/proc/self/ns/pid');
  // Time namespaces shift start times. Older kernels lack them.
  const time = (await readLink('/proc/self/ns/time')) ?? '';
  const startTime = await startTimeOf(pid);
  // A /proc of another pid namespace shows other pids.
  const isOwnProc = (await readLink('/proc/self')) === String(pid);
  if (boot === undefined || namespace === undefined || startTime === undefined || !isOwnProc) return undefined;
  return { scope: `${boot} ${namespace} ${time}`.trim(), pid, startTime };
}

/** True only if the process is certainly gone. Call it only for a process of our own scope. */
export async function isGone({ pid, startTime }: KernelProcess): Promise<boolean> {
  try {
    // /proc can hide the processes of other users; kill(2) does not.
    process.kill(pid, 0);
  } catch (cause) {
    if (isErrno(cause, 'ESRCH')) return true;
  }
  const found = await startTimeOf(pid);
  return found !== undefined && found !== startTime;
}

async function startTimeOf(pid: number): Promise<string | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  // The second field is the program's name in parentheses, with any characters in it. The start time is field 22.
  const started = text.slice(text.lastIndexOf(')') + 1).trim();
  return started.split(' ')[19];
}

export interface DeathProofs {
  /** This process. */
  readonly own: ControllerProcess;
  isGone(process: KernelProcess): Promise<boolean>;
  /** Asks Kubernetes. Undefined: Kubernetes is not asked. */
  hasEnded?(pod: NonNullable<ControllerProcess['pod']>): Promise<boolean>;
}

/** True only if the process is certainly dead. An expired Lease or a deleted pod proves nothing. */
export async function isProvenDead(candidate: ControllerProcess, proofs: DeathProofs): Promise<boolean> {
  const { own } = proofs;
  if (candidate.mark === own.mark) return false;
  if (candidate.kernel !== undefined && own.kernel !== undefined) {
    if (candidate.kernel.scope === own.kernel.scope) return await proofs.isGone(candidate.kernel);
    // A kubelet restarts a container only after it has ended. A second process in our own container has our scope.
    if (candidate.pod !== undefined && candidate.pod.uid === own.pod?.uid) return true;
  }
  return candidate.pod !== undefined && (await proofs.hasEnded?.(candidate.pod)) === true;
}

/** Whether the kubelet reported that all containers of the pod have ended and none gets restarted. */
export async function hasPodEnded(
  client: KubeClient,
  { namespace, name, uid }: { readonly namespace: string; readonly name: string; readonly uid: string },
  signal: AbortSignal,
): Promise<boolean> {
  const pod = await client.get(pods, { namespace, name }, signal).catch(() => undefined);
  return pod !== undefined && pod.metadata.uid === uid && isPodEnded(pod);
}

/** The control plane also sets the phase Failed for pods of lost nodes, but does not change the containers' states. */
export function isPodEnded({ spec, status }: Pick<Pod, 'spec' | 'status'>): boolean {
  const statuses = status?.containerStatuses ?? [];
  const isTerminal = status?.phase === 'Succeeded' || status?.phase === 'Failed';
  // If a kubelet cannot find a container, it also reports it as terminated, with this reason and without finishedAt.
  const hasEnded = ({ state }: (typeof statuses)[number]): boolean =>
    typeof state?.terminated?.finishedAt === 'string' && state.terminated.reason !== 'ContainerStatusUnknown';
  return isTerminal && statuses.length > 0 && statuses.length === spec?.containers?.length && statuses.every(hasEnded);
}
