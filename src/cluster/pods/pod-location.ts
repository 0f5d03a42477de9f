import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { PodName } from '#core/check-places.ts';
import { StowageError } from '#core/errors.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { pods } from '#wire/kube/resources.ts';
import type { Pod } from '#wire/kube/types.ts';

export interface PodLocation {
  /** Distinguishes pods of the same name. */
  readonly uid: string;
  readonly node: string;
  readonly address: string;
  /** Whether the pod uses the network, and so the address, of its node. */
  readonly hostNetwork: boolean;
}

const answerMs = 5_000;

/** Reads the node and the address of a running pod from the API server. Returns undefined if there is no such pod. */
export async function locatePod(
  client: KubeClient,
  clock: Clock,
  podName: PodName,
  scope: Scope,
): Promise<PodLocation | undefined> {
  const pod = await readPod(client, clock, podName, scope);
  if (pod === undefined) return undefined;
  const { nodeName: node, hostNetwork = false } = pod.spec ?? {};
  const { phase, podIP: address } = pod.status ?? {};
  if (phase === 'Succeeded' || phase === 'Failed') throw podEnded(podName);
  // Its network may be removed at any moment, and another pod may then get its address.
  if (pod.metadata.deletionTimestamp !== undefined) throw podEnding(podName);
  if (node === undefined || address === undefined || address === '') throw podWithoutAddress(podName);
  return { uid: pod.metadata.uid ?? '', node, address, hostNetwork };
}

async function readPod(client: KubeClient, clock: Clock, podName: PodName, scope: Scope): Promise<Pod | undefined> {
  using limit = clock.deadline(answerMs, scope.signal);
  try {
    return await client.get(pods, podName, limit.signal);
  } catch (cause) {
    scope.signal.throwIfAborted();
    if (reasonOf(cause) === 'NotFound') return undefined;
    scope.log.warn('the controller could not get a pod from Kubernetes', { error: cause });
    throw podLookupFailed(cause);
  }
}

const podWithoutAddress = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' has no network address yet`, {
    code: 'conflict',
    reason: 'pod-without-address',
    action: `Wait until it runs, or find out why it does not run: kubectl describe pod ${name} --namespace ${namespace}`,
  });

const podEnded = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' has ended and no longer has a network`, {
    code: 'conflict',
    reason: 'pod-ended',
    action: 'Name a running pod.',
  });

const podEnding = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' is being deleted`, {
    code: 'conflict',
    reason: 'pod-ending',
    action: 'Name a running pod that is not being deleted.',
  });

const podLookupFailed = (cause: unknown): StowageError =>
  new StowageError('the controller could not get the pod from Kubernetes', {
    code: 'unavailable',
    reason: 'pod-unasked',
    cause,
    action: "Try again in a moment. If the problem persists, check the controller's log.",
  });
