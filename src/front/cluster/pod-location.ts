import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { pods } from '#wire/kube/resources.ts';
import type { Pod } from '#wire/kube/types.ts';

export interface PodLocation {
  readonly uid: string;
  readonly node: string;
  readonly address: string;
}

export interface NamedPod {
  readonly namespace: string;
  readonly name: string;
}

const answerMs = 5_000;

/** Asks the API server on which node a running pod is, and at which address. */
export async function locatePod(client: KubeClient, clock: Clock, named: NamedPod, scope: Scope): Promise<PodLocation> {
  const pod = await podOf(client, clock, named, scope);
  const { nodeName: node } = pod.spec ?? {};
  const { phase, podIP: address } = pod.status ?? {};
  if (phase === 'Succeeded' || phase === 'Failed') throw ended(named);
  if (node === undefined || address === undefined || address === '') throw notYet(named);
  return { uid: pod.metadata.uid ?? '', node, address };
}

async function podOf(client: KubeClient, clock: Clock, named: NamedPod, scope: Scope): Promise<Pod> {
  using limit = clock.deadline(answerMs, scope.signal);
  try {
    return await client.get(pods, named, limit.signal);
  } catch (cause) {
    scope.signal.throwIfAborted();
    throw reasonOf(cause) === 'NotFound' ? unknown(named) : unasked(cause);
  }
}

const unknown = ({ namespace, name }: NamedPod): StowageError =>
  new StowageError(`there is no pod '${namespace}/${name}'`, {
    code: 'not-found',
    reason: 'pod-unknown',
    action: `List the pods: kubectl get pods --namespace ${namespace}`,
  });

const notYet = ({ namespace, name }: NamedPod): StowageError =>
  new StowageError(`pod '${namespace}/${name}' has no network address yet`, {
    code: 'conflict',
    reason: 'pod-without-address',
    action: `Wait until it runs, or look at why it does not: kubectl describe pod ${name} --namespace ${namespace}`,
  });

const ended = ({ namespace, name }: NamedPod): StowageError =>
  new StowageError(`pod '${namespace}/${name}' has ended, and has no network any more`, {
    code: 'conflict',
    reason: 'pod-ended',
    action: 'Name a pod that runs.',
  });

const unasked = (cause: unknown): StowageError =>
  new StowageError('the controller could not ask Kubernetes about the pod', {
    code: 'unavailable',
    reason: 'pod-unasked',
    cause,
    action: "Try again in a moment. If it persists, look at the controller's log.",
  });
