import { createHash } from 'node:crypto';
import { StowageError, stowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';
import { storesOfNodes } from './node-lists.ts';
import { type Asked, askEach, type Nodes, nodesAfter } from './nodes.ts';
import type { Answer, Request, Route } from './route.ts';
import type { VolumeDetailJson } from './schemas.ts';

const isUnknown = (reason: string): boolean => reason === 'volume-unknown' || reason === 'store-unknown';

interface Held {
  readonly node: string;
  readonly volume: VolumeDetailJson;
}

/** The node that has this volume. Undefined: none has. Throws when that cannot be told. */
async function holderOf(nodes: Nodes, ref: string, request: Request<never, never, never>): Promise<Held | undefined> {
  const path = `/v1/volumes/${encodeURIComponent(ref)}`;
  const { answers, unreached } = await askEach<VolumeDetailJson>(nodes, nodesAfter(nodes, undefined), path, request);
  const [first, second] = answers;
  if (second !== undefined) throw onSeveral(ref, answers);
  if (first !== undefined) return { node: first.node, volume: first.answer };
  const silent = unreached.filter(({ reason }) => !isUnknown(reason)).map(({ node }) => node);
  if (silent.length > 0) throw incomplete(ref, silent);
  return undefined;
}

/** What the route does here, or the same on the node whose volume it is about. */
export async function hereOrOnNode(route: Route, request: Request<never, never, never>): Promise<Answer> {
  const { nodes, params, body, expected, call } = request;
  try {
    return await route.handle(request);
  } catch (thrown) {
    const { reason } = stowageError(thrown);
    if (nodes === undefined || (!isUnknown(reason) && reason !== 'volume-lookup-incomplete')) throw thrown;
    if (route.onNodes !== true) throw (reason === 'store-unknown' && (await ofNodes(nodes, request))) || thrown;
    const { volume: ref } = params as { readonly volume: string };
    const held = await holderOf(nodes, ref, request);
    if (held === undefined) throw thrown;
    if (expected !== undefined) throw unconditional(held);
    // By its id: in the meantime another may have got the name.
    const path = route.path.replace('{volume}', encodeURIComponent(held.volume.id));
    const change = route.method === 'GET' ? {} : { requestId: keyFrom(call.requestId) };
    const sent = { method: route.method, path, ...change, ...(body === undefined ? {} : { body: body as object }) };
    const answer = await nodes.ask(held.node, sent, call);
    const hasNode = typeof answer === 'object' && answer !== null && 'revision' in answer;
    return { status: route.success.status, body: hasNode ? { ...answer, node: held.node } : answer };
  }
}

/** Why not, where it is about a store that each node has for itself. */
async function ofNodes(nodes: Nodes, request: Request<never, never, never>): Promise<StowageError | undefined> {
  const { store: inPath } = (request.params ?? {}) as { readonly store?: string };
  const { store: inBody } = (request.body ?? {}) as { readonly store?: string };
  const name = inPath ?? inBody;
  const { stores } = await storesOfNodes(nodes, request);
  if (name === undefined || !stores.some((store) => store.name === name)) return undefined;
  return new StowageError(`each node has a store ${quoted(name)} of its own, and this is done by its agent only`, {
    code: 'unsupported',
    reason: 'store-of-nodes',
    action:
      'Volumes are made on it by claims. For the rest, run the command line in the pod of that node’s agent: kubectl exec',
  });
}

/** As a header can have it. */
const keyFrom = (requestId: string): string => createHash('sha256').update(requestId).digest('base64url');

const onSeveral = (ref: string, all: Asked<VolumeDetailJson>['answers']): StowageError =>
  new StowageError(`several nodes have a volume ${quoted(ref)}: ${all.map(({ node }) => node).join(', ')}`, {
    code: 'conflict',
    reason: 'volume-ambiguous',
    action: `Give its id: ${all.map(({ node, answer }) => `${answer.id} on ${node}`).join(', ')}`,
  });

const incomplete = (ref: string, silent: readonly string[]): StowageError =>
  new StowageError(
    `volume ${quoted(ref)} was not found, but not every node could be asked: ${silent.slice(0, 10).join(', ')}`,
    {
      code: 'unavailable',
      reason: 'volume-lookup-incomplete',
      action: 'Try again when the agents of these nodes run.',
    },
  );

const unconditional = ({ node }: Held): StowageError =>
  new StowageError(`the volume is on node ${quoted(node)}, which is not asked for its revision from here`, {
    code: 'unsupported',
    reason: 'condition-unsupported',
    action: 'Leave out If-Match (--if-revision).',
  });
