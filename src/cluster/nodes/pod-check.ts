import { isDeepStrictEqual } from 'node:util';
import Value from 'typebox/value';
import type { Scope } from '#base/log.ts';
import { terminalSafeExcerpt } from '#base/terminal-safe.ts';
import { type PodName, podAddressPlace } from '#core/check-places.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreCheck } from '#core/model.ts';
import { type StoreCheckJson, storeCheck } from '#front/rest/schemas.ts';
import type { PodLocation } from '../pods/pod-location.ts';
import { unreadableAnswer } from '../tunnel/agent-answers.ts';
import type { NodeApis } from './node-apis.ts';

/** A check has about ten. */
const maxSteps = 64;

/** Has the agent of the pod's node check the store from the network of the pod. Returns undefined if there is no such pod. */
export async function checkFromPod(
  apis: NodeApis,
  store: string,
  pod: PodName,
  scope: Scope,
): Promise<StoreCheck | undefined> {
  const location = await apis.pod(pod, scope);
  if (location === undefined) return undefined;
  const check = await askAgent(apis, store, location, scope);
  // The address may belong to another pod by now.
  if (!isDeepStrictEqual(await apis.pod(pod, scope), location)) throw replaced(pod);
  return {
    ok: check.ok,
    steps: check.steps.slice(0, maxSteps).map(({ step, ok, detail, action, reason }) => ({
      step: terminalSafeExcerpt(step),
      ok,
      detail: terminalSafeExcerpt(detail),
      ...(action === null ? {} : { action: terminalSafeExcerpt(action) }),
      ...(reason === undefined ? {} : { reason }),
    })),
    totalBytes: check.totalBytes === null ? undefined : BigInt(check.totalBytes),
    freeBytes: check.freeBytes === null ? undefined : BigInt(check.freeBytes),
  };
}

async function askAgent(apis: NodeApis, store: string, location: PodLocation, scope: Scope): Promise<StoreCheckJson> {
  const { node } = location;
  const from = podAddressPlace(location);
  const path = `/v1/stores/${encodeURIComponent(store)}/check`;
  const answer = await apis.ask(node, { method: 'POST', path, body: { from } }, scope);
  // A newer agent may return more fields.
  const known = Value.Clean(storeCheck, answer);
  if (!Value.Check(storeCheck, known)) throw unreadableAnswer(node, 'it is not the result of a check');
  // An agent of an earlier version ignores where the check is to start, and checks from the node.
  if (known.from !== from) throw agentTooOld(node);
  return known;
}

const agentTooOld = (node: string): StowageError =>
  new StowageError(`the agent of node ${node} cannot check from this pod: its version is older than the controller's`, {
    code: 'unsupported',
    reason: 'agent-too-old',
    action: 'Wait until the agents are upgraded: kubectl rollout status daemonset/stowage-agent --namespace NAMESPACE',
  });

const replaced = ({ namespace, name }: PodName): StowageError =>
  new StowageError(`pod '${namespace}/${name}' was deleted, replaced or moved during the check`, {
    code: 'conflict',
    reason: 'pod-replaced',
    action: 'Try again.',
  });
