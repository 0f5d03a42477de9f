import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import type { ClusterVolumePage, UnreachedNode, VolumePage, VolumePageRequest } from '#front/rest/cluster-nodes.ts';
import type { VolumeJson } from '#front/rest/schemas.ts';
import { askNodes, type NodeApis, nodesAfter, nodesAtOnce } from './node-apis.ts';

const emptyPage: VolumePage = { items: [], next: undefined, unanswered: [] };
const starts = { name: '*', store: undefined };
/** Sorts before the name of every node. */
const beforeAllNodes = { ...starts, node: ' ' };

/** Lists the shared volumes first, then those of each node. */
export async function volumesOfCluster(
  apis: NodeApis,
  wanted: VolumePageRequest,
  shared: () => Promise<VolumePage>,
  scope: Scope,
): Promise<ClusterVolumePage> {
  const { filter, after, limit } = wanted;
  const isAmongNodes = after?.node !== undefined;
  let unknown: unknown;
  const own = isAmongNodes
    ? emptyPage
    : await shared().catch((thrown: unknown) => {
        // The store may exist only on nodes.
        if (filter.store === undefined || stowageError(thrown).reason !== 'store-unknown') throw thrown;
        unknown = thrown;
        return undefined;
      });
  const isShared = !isAmongNodes && own !== undefined && filter.store !== undefined;
  if (isShared || filter.reach === 'anywhere' || (own !== undefined && own.next !== undefined)) return own ?? emptyPage;
  const before = own ?? emptyPage;
  const room = limit - before.items.length;
  // The page is full; the next one starts with the nodes.
  if (room <= 0) return { ...before, next: beforeAllNodes };
  const { isStoreUnknown: isNowhere, ...theirs } = await volumesOfNodes(apis, { ...wanted, limit: room }, scope);
  if (own === undefined && isNowhere) throw unknown;
  return {
    ...theirs,
    items: [...before.items, ...theirs.items],
    unanswered: [...before.unanswered, ...theirs.unanswered],
  };
}

interface NodesPage extends ClusterVolumePage {
  readonly unreached: readonly UnreachedNode[];
  /** No node has the requested store, and all nodes answered. */
  readonly isStoreUnknown: boolean;
}

interface AgentPage {
  readonly items: readonly VolumeJson[];
  readonly unanswered: readonly string[];
}

/** Lists node by node, so that each page asks only a few nodes. */
async function volumesOfNodes(
  apis: NodeApis,
  { filter, after: place, limit }: VolumePageRequest,
  scope: Scope,
): Promise<NodesPage> {
  const after = place?.node === undefined ? undefined : place;
  const started = after?.store === undefined ? [] : [after.node];
  const left = [...started, ...nodesAfter(apis, after?.node)];
  const some = left.slice(0, nodesAtOnce);
  const pathFor = (node: string): string => {
    const query = new URLSearchParams({ reach: 'node', limit: String(limit) });
    if (filter.store !== undefined) query.set('store', filter.store);
    if (filter.contains !== undefined) query.set('contains', filter.contains);
    for (const label of filter.label ?? []) query.append('label', label);
    if (started.includes(node) && after?.store !== undefined) query.set('after', `${after.store}/${after.name}`);
    return `/v1/volumes?${query}`;
  };
  const asked = await askNodes<AgentPage>(apis, some, pathFor, scope);
  // A node without the requested store has answered.
  const unreached = asked.unreached.filter(({ error }) => error.reason !== 'store-unknown');
  const items: VolumeJson[] = [];
  const unanswered: string[] = [];
  for (const { node, answer } of asked.answers) {
    const room = limit - items.length;
    items.push(...answer.items.slice(0, room).map((item) => ({ ...item, node })));
    unanswered.push(...answer.unanswered.map((store) => `${store} on ${node}`));
    const last = items.at(-1);
    if (items.length >= limit && last !== undefined)
      return {
        items,
        next: { store: last.store, name: last.name, node },
        unanswered,
        unreached,
        isStoreUnknown: false,
      };
  }
  const end = left.length > some.length ? some.at(-1) : undefined;
  const isNowhere = end === undefined && after === undefined && asked.answers.length === 0 && unreached.length === 0;
  const next = end === undefined ? undefined : { ...starts, node: end };
  return { items, next, unanswered, unreached, isStoreUnknown: isNowhere };
}
