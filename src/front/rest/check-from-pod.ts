import { isDeepStrictEqual } from 'node:util';
import Value from 'typebox/value';
import { harmlessPart } from '#base/terminal-safe.ts';
import { type PodName, podAddressPlace } from '#core/check-places.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import type { StoreCheck } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { podRight } from './access.ts';
import type { Nodes, PodLocation } from './nodes.ts';
import type { Request } from './route.ts';
import { type StoreCheckJson, storeCheck } from './schemas.ts';

type Asking = Pick<Request<never, never, never>, 'nodes' | 'permit' | 'call'>;

/** A check has about ten. */
const mostSteps = 64;

/** Checks the store from the network of a pod. The agent of the pod's node does it. */
export async function checkFromPod({ nodes, permit, call }: Asking, store: string, pod: PodName): Promise<StoreCheck> {
  if (nodes === undefined) throw notInCluster(store, `pod:${pod.namespace}/${pod.name}`);
  await permit(podRight(pod)).catch((thrown: unknown) => {
    throw stowageError(thrown).code === 'denied' ? unknown(pod) : thrown;
  });
  const location = await nodes.pod(pod, call);
  if (location === undefined) throw unknown(pod);
  const check = await askAgent(nodes, store, location, call);
  // The address may belong to another pod by now.
  if (!isDeepStrictEqual(await nodes.pod(pod, call), location)) throw replaced(pod);
  return {
    ok: check.ok,
    steps: check.steps.slice(0, mostSteps).map(({ step, ok, detail, action, reason }) => ({
      ...{ step: harmlessPart(step), ok, detail: harmlessPart(detail) },
      ...(action === null ? {} : { action: harmlessPart(action) }),
      ...(reason === undefined ? {} : { reason }),
    })),
    totalBytes: check.totalBytes === null ? undefined : BigInt(check.totalBytes),
    freeBytes: check.freeBytes === null ? undefined : BigInt(check.freeBytes),
  };
}

async function askAgent(nodes: Nodes, store: string, location: PodLocation, call: Call): Promise<StoreCheckJson> {
  const { node } = location;
  const from = podAddressPlace(location);
  const path = `/v1/stores/${encodeURIComponent(store)}/check`;
  const answer = await nodes.ask(node, { method: 'POST', path, body: { from } }, call);
  // An agent of a later version may say more.
  const known = Value.Clean(storeCheck, answer);
  if (!Value.Check(storeCheck, known)) throw unreadable(node);
  // An agent of an earlier version ignores where the check is to start, and checks from the node.
  if (known.from !== from) throw agentTooOld(node);
  return known;
}

/** Containers and network namespaces belong to a node, and the request does not name one. */
export const onlyFromPods = (from: string): StowageError =>
  new StowageError(`the controller cannot check a store from ${from}, only from pods`, {
    code: 'unsupported',
    reason: 'check-only-from-pods',
    action:
      'Name a pod: --from pod:NAMESPACE/NAME. For other places, run the command line in the pod of the node’s agent: kubectl exec',
  });

/** The same error for both, so that a caller without the right to read pods cannot find out which pods exist. */
const unknown = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`there is no pod '${namespace}/${name}', or you may not read it`, {
    code: 'not-found',
    reason: 'pod-unknown',
    action: `List the pods: kubectl get pods --namespace ${namespace}. The account of the check needs the right to 'get' pods there.`,
  });

const notInCluster = (store: string, place: string): StowageError =>
  new StowageError('this Stowage knows no pods', {
    code: 'unsupported',
    reason: 'pods-unknown',
    action: `Ask the controller of the cluster: kubectl stowage store check ${store} --account ACCOUNT --from ${place}`,
  });

const agentTooOld = (node: string): StowageError =>
  new StowageError(`the agent of node ${node} cannot check from this pod: its version is older than the controller's`, {
    code: 'unsupported',
    reason: 'agent-too-old',
    action: 'Wait until the agents are upgraded: kubectl rollout status daemonset/stowage-agent --namespace NAMESPACE',
  });

const unreadable = (node: string): StowageError =>
  new StowageError(`the agent of node ${node} gave an answer that cannot be read: it is not the result of a check`, {
    code: 'internal',
    reason: 'agent-answer-unreadable',
    action: 'Check that the agents and the controller have the same version.',
  });

const replaced = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' was deleted, replaced or moved during the check`, {
    code: 'conflict',
    reason: 'pod-replaced',
    action: 'Try again.',
  });
