import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreCheck } from '#core/model.ts';
import type { Nodes } from './nodes.ts';
import type { StoreCheckJson } from './schemas.ts';

export interface PodName {
  readonly namespace: string;
  readonly name: string;
}

/** Of `pod:NAMESPACE/NAME`. Undefined: it is another place. */
export function podIn(from: string | undefined): PodName | undefined {
  const [, namespace, name] = /^pod:([^/]+)\/([^/]+)$/.exec(from ?? '') ?? [];
  return namespace === undefined || name === undefined ? undefined : { namespace, name };
}

/** Checks the store from the network of a pod. The agent of the pod's node does it. */
export async function checkFromPod(
  nodes: Nodes | undefined,
  store: string,
  pod: PodName,
  scope: Scope,
): Promise<StoreCheck> {
  const place = `pod:${pod.namespace}/${pod.name}`;
  if (nodes === undefined) throw notInCluster(store, place);
  const { node, address, uid } = await nodes.pod(pod, scope);
  const from = `pod-address:${address}`;
  const path = `/v1/stores/${encodeURIComponent(store)}/check`;
  const check = (await nodes.ask(node, { method: 'POST', path, body: { from } }, scope)) as StoreCheckJson;
  // An agent of an earlier version ignores where the check is to start, and checks from the node.
  if (check.from !== from) throw agentTooOld(node);
  // If the pod was deleted during the check, the address may already belong to another pod.
  if ((await nodes.pod(pod, scope)).uid !== uid) throw replaced(pod);
  return {
    ok: check.ok,
    steps: check.steps.map(({ step, ok, detail, action }) => ({
      step,
      ok,
      detail,
      ...(action === null ? {} : { action }),
    })),
    totalBytes: check.totalBytes === null ? undefined : BigInt(check.totalBytes),
    freeBytes: check.freeBytes === null ? undefined : BigInt(check.freeBytes),
  };
}

/** Containers and network namespaces belong to a node, and the request does not name one. */
export const onlyFromPods = (from: string): StowageError =>
  new StowageError(`the controller cannot check a store from ${from}, only from pods`, {
    code: 'unsupported',
    reason: 'check-only-from-pods',
    action:
      'Name a pod: --from pod:NAMESPACE/NAME. For other places, run the command line in the pod of the node’s agent: kubectl exec',
  });

const notInCluster = (store: string, place: string): StowageError =>
  new StowageError('this Stowage knows no pods', {
    code: 'unsupported',
    reason: 'pods-unknown',
    action: `Ask the controller of the cluster: kubectl stowage store check ${store} --from ${place}`,
  });

const agentTooOld = (node: string): StowageError =>
  new StowageError(`the agent of node ${node} cannot check from pods: its version is older than the controller's`, {
    code: 'unsupported',
    reason: 'agent-too-old',
    action: 'Wait until the agents are upgraded: kubectl rollout status daemonset/stowage-agent --namespace NAMESPACE',
  });

const replaced = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' was replaced by another one during the check`, {
    code: 'conflict',
    reason: 'pod-replaced',
    action: 'Try again.',
  });
