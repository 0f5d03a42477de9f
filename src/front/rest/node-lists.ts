import { askEach, type Nodes, nodesAfter, nodesAtOnce } from './nodes.ts';
import type { Request } from './route.ts';
import type { StoreJson, UnreachedJson, VolumeJson } from './schemas.ts';

type Asking = Pick<Request<never, never, never>, 'principal' | 'call'>;

/** Where a page of volumes begins: after one of the volumes that all nodes share, or after one of a node, or after all of a node. */
export type Place =
  | { readonly node: undefined; readonly store: string; readonly name: string }
  | { readonly node: string; readonly store: string | undefined; readonly name: string };

/** `store/name`, `store/name/node`, or for the end of a node: two stars and its name. */
export function placeFrom(text: string | undefined): Place | undefined {
  const [store, name, node] = text?.split('/') ?? [];
  if (store === undefined || name === undefined) return undefined;
  if (node === undefined) return { node, store, name };
  return { node, store: store === '*' ? undefined : store, name };
}

export interface VolumePage {
  readonly items: readonly VolumeJson[];
  readonly next: string | null;
  readonly unanswered: readonly string[];
}

export interface VolumeFilter {
  readonly store?: string | undefined;
  readonly label?: readonly string[] | undefined;
  readonly contains?: string | undefined;
}

export interface NodesPage extends VolumePage {
  readonly unreached: readonly UnreachedJson[];
  /** All that were asked know nothing of the store that was asked for, and more are not left. */
  readonly isNowhere: boolean;
}

/** After those that all nodes share come those of each node, node by node: so that few nodes are asked for a page. */
export async function volumesOfNodes(
  nodes: Nodes,
  {
    filter,
    after,
    limit,
  }: { readonly filter: VolumeFilter; readonly after: Place | undefined; readonly limit: number },
  request: Asking,
): Promise<NodesPage> {
  const started = after?.node !== undefined && after.store !== undefined ? [after.node] : [];
  const left = [...started, ...nodesAfter(nodes, after?.node)];
  const some = left.slice(0, nodesAtOnce);
  const pathFor = (node: string): string => {
    const query = new URLSearchParams({ reach: 'node', limit: String(limit) });
    if (filter.store !== undefined) query.set('store', filter.store);
    if (filter.contains !== undefined) query.set('contains', filter.contains);
    for (const label of filter.label ?? []) query.append('label', label);
    if (started.includes(node) && after?.store !== undefined) query.set('after', `${after.store}/${after.name}`);
    return `/v1/volumes?${query}`;
  };
  const { answers, unreached } = await askEach<VolumePage>(nodes, some, pathFor, request);
  const items: VolumeJson[] = [];
  const unanswered: string[] = [];
  for (const { node, answer } of answers) {
    const room = limit - items.length;
    items.push(...answer.items.slice(0, room).map((item) => ({ ...item, node })));
    unanswered.push(...answer.unanswered.map((store) => `${store} on ${node}`));
    const last = items.at(-1);
    if (items.length >= limit && last !== undefined)
      return {
        ...{ items, next: `${last.store}/${last.name}/${node}`, unanswered },
        ...{ unreached: known(unreached), isNowhere: false },
      };
  }
  const isMore = left.length > some.length;
  const isNowhere = !isMore && after === undefined && answers.length === 0 && known(unreached).length === 0;
  return { items, next: isMore ? `*/*/${some.at(-1)}` : null, unanswered, unreached: known(unreached), isNowhere };
}

/** One that has not the store that is asked for has answered. */
const known = (unreached: readonly UnreachedJson[]): readonly UnreachedJson[] =>
  unreached.filter(({ reason }) => reason !== 'store-unknown');

const worst = ['unavailable', 'not-answering', 'open'] as const;

/** A store as an agent reports it. Agents of older versions do not report the space of its file system. */
type AgentStore = Omit<StoreJson, SpaceKey> & Partial<Pick<StoreJson, SpaceKey>>;
type SpaceKey = 'totalBytes' | 'freeBytes';

/** Null: one of them is not known. */
const sumOf = (figures: readonly (string | null | undefined)[]): string | null =>
  figures.reduce<string | null>(
    (sum, figure = null) => (sum === null || figure === null ? null : String(BigInt(sum) + BigInt(figure))),
    '0',
  );

/** Each node has a store of that name of its own: as one, with what there is on each. */
function joined(all: readonly { readonly node: string; readonly store: AgentStore }[]): readonly StoreJson[] {
  const byName = Map.groupBy(all, ({ store }) => store.name);
  return [...byName.values()].flatMap((group) => {
    const [first] = group;
    if (first === undefined) return [];
    const state = worst.find((one) => group.some(({ store }) => store.state === one)) ?? first.store.state;
    const ill = group.find(({ store }) => store.problem !== null);
    return {
      ...first.store,
      state,
      default: false,
      identity: null,
      problem: ill?.store.problem
        ? { ...ill.store.problem, message: `on ${ill.node}: ${ill.store.problem.message}` }
        : null,
      volumes: group.reduce((sum, { store }) => sum + store.volumes, 0),
      bytes: String(group.reduce((sum, { store }) => sum + BigInt(store.bytes), 0n)),
      totalBytes: sumOf(group.map(({ store }) => store.totalBytes)),
      freeBytes: sumOf(group.map(({ store }) => store.freeBytes)),
      nodes: group.map(({ node, store }) => ({
        ...{ node, state: store.state, volumes: store.volumes, bytes: store.bytes },
      })),
    };
  });
}

/** The stores that nodes have for themselves. */
export async function storesOfNodes(
  nodes: Nodes,
  request: Asking,
): Promise<{ readonly stores: readonly StoreJson[]; readonly unreached: readonly UnreachedJson[] }> {
  const path = '/v1/stores';
  const asked = await askEach<{ items: readonly AgentStore[] }>(nodes, nodesAfter(nodes, undefined), path, request);
  const own = asked.answers.flatMap(({ node, answer }) =>
    answer.items.flatMap((store) => (store.reach === 'node' ? [{ node, store }] : [])),
  );
  return { stores: joined(own), unreached: asked.unreached };
}
