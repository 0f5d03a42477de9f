import { createHash } from 'node:crypto';
import type { Scope } from '#base/log.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import type { VolumeRequest } from '#front/rest/cluster-nodes.ts';
import type { VolumeDetailJson } from '#front/rest/schemas.ts';
import { askNodes, type NodeAnswers, type NodeApis, nodesAfter } from './node-apis.ts';
import { storesOfNodes } from './node-stores.ts';

const isUnknown = (reason: string): boolean => reason === 'volume-unknown' || reason === 'store-unknown';

interface FoundVolume {
  readonly node: string;
  readonly volume: VolumeDetailJson;
}

/** Finds the node that has the volume. Undefined if no node has it. Throws if not all nodes could be asked. */
async function findVolume(apis: NodeApis, ref: string, scope: Scope): Promise<FoundVolume | undefined> {
  const path = `/v1/volumes/${encodeURIComponent(ref)}`;
  const { answers, unreached } = await askNodes<VolumeDetailJson>(apis, nodesAfter(apis, undefined), path, scope);
  const [first, second] = answers;
  if (second !== undefined) throw ambiguousVolume(ref, answers);
  if (first !== undefined) return { node: first.node, volume: first.answer };
  const silent = unreached.filter(({ error }) => !isUnknown(error.reason)).map(({ node }) => node);
  if (silent.length > 0) throw lookupIncomplete(ref, silent);
  return undefined;
}

/** Repeats a request that failed on the controller on the node that has the volume. */
export async function retryOnNode(
  apis: NodeApis,
  failure: unknown,
  request: VolumeRequest,
  call: Call,
): Promise<unknown> {
  const { method, volume: ref, body, isConditional } = request;
  const { reason } = stowageError(failure);
  if (!isUnknown(reason) && reason !== 'volume-lookup-incomplete') throw failure;
  if (!request.onNodes || ref === undefined)
    throw (reason === 'store-unknown' && (await storeOfNodesError(apis, request.store, call))) || failure;
  const held = await findVolume(apis, ref, call);
  if (held === undefined) throw failure;
  if (isConditional) throw conditionUnsupported(held);
  // By id: another volume may have the name by now.
  const path = request.path.replace('{volume}', encodeURIComponent(held.volume.id));
  const change = method === 'GET' ? {} : { requestId: idempotencyKeyFrom(call.requestId) };
  const answer = await apis.ask(held.node, { method, path, ...change, ...(body === undefined ? {} : { body }) }, call);
  const hasNode = typeof answer === 'object' && answer !== null && 'revision' in answer;
  return hasNode ? { ...answer, node: held.node } : answer;
}

/** The error for a request about a store that each node has for itself. */
async function storeOfNodesError(
  apis: NodeApis,
  name: string | undefined,
  scope: Scope,
): Promise<StowageError | undefined> {
  const { stores } = await storesOfNodes(apis, scope);
  if (name === undefined || !stores.some((store) => store.name === name)) return undefined;
  return new StowageError(`each node has its own store ${quoted(name)}, and only the node's agent can do this`, {
    code: 'unsupported',
    reason: 'store-of-nodes',
    action: 'Claims create volumes on it. For anything else, run stowage in the agent pod of that node: kubectl exec',
  });
}

/** A hash, since a header cannot carry every request id. */
const idempotencyKeyFrom = (requestId: string): string => createHash('sha256').update(requestId).digest('base64url');

const ambiguousVolume = (ref: string, all: NodeAnswers<VolumeDetailJson>['answers']): StowageError =>
  new StowageError(`several nodes have a volume ${quoted(ref)}: ${all.map(({ node }) => node).join(', ')}`, {
    code: 'conflict',
    reason: 'volume-ambiguous',
    action: `Give its id: ${all.map(({ node, answer }) => `${answer.id} on ${node}`).join(', ')}`,
  });

const lookupIncomplete = (ref: string, silent: readonly string[]): StowageError =>
  new StowageError(
    `volume ${quoted(ref)} was not found, but not every node could be asked: ${silent.slice(0, 10).join(', ')}`,
    {
      code: 'unavailable',
      reason: 'volume-lookup-incomplete',
      action: 'Try again when the agents of these nodes run.',
    },
  );

const conditionUnsupported = ({ node }: FoundVolume): StowageError =>
  new StowageError(`the volume is on node ${quoted(node)}, and the controller cannot check its revision`, {
    code: 'unsupported',
    reason: 'condition-unsupported',
    action: 'Leave out If-Match (--if-revision).',
  });
