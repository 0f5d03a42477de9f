import type { Scope } from '#base/log.ts';
import type { UnreachedNode } from '#front/rest/cluster-nodes.ts';
import type { StoreJson } from '#front/rest/schemas.ts';
import { askNodes, type NodeApis, nodesAfter } from './node-apis.ts';

const worst = ['unavailable', 'not-answering', 'open'] as const;

/** A store as an agent reports it. Agents of older versions do not report the space of its file system. */
type AgentStore = Omit<StoreJson, SpaceKey> & Partial<Pick<StoreJson, SpaceKey>>;
type SpaceKey = 'totalBytes' | 'freeBytes';

/** Null if one of the figures is unknown. */
const sumOf = (figures: readonly (string | null | undefined)[]): string | null =>
  figures.reduce<string | null>(
    (sum, figure = null) => (sum === null || figure === null ? null : String(BigInt(sum) + BigInt(figure))),
    '0',
  );

/** Merges the stores of the same name on all nodes into one, with the figures of each node. */
function merged(all: readonly { readonly node: string; readonly store: AgentStore }[]): readonly StoreJson[] {
  const byName = Map.groupBy(all, ({ store }) => store.name);
  return [...byName.values()].flatMap((group) => {
    const [first] = group;
    if (first === undefined) return [];
    const state = worst.find((one) => group.some(({ store }) => store.state === one)) ?? first.store.state;
    const withProblem = group.find(({ store }) => store.problem !== null);
    return {
      ...first.store,
      state,
      default: false,
      identity: null,
      problem: withProblem?.store.problem
        ? { ...withProblem.store.problem, message: `on ${withProblem.node}: ${withProblem.store.problem.message}` }
        : null,
      volumes: group.reduce((sum, { store }) => sum + store.volumes, 0),
      bytes: String(group.reduce((sum, { store }) => sum + BigInt(store.bytes), 0n)),
      totalBytes: sumOf(group.map(({ store }) => store.totalBytes)),
      freeBytes: sumOf(group.map(({ store }) => store.freeBytes)),
      nodes: group.map(({ node, store }) => ({
        node,
        state: store.state,
        volumes: store.volumes,
        bytes: store.bytes,
      })),
    };
  });
}

/** The stores that nodes have for themselves. */
export async function storesOfNodes(
  apis: NodeApis,
  scope: Scope,
): Promise<{ readonly stores: readonly StoreJson[]; readonly unreached: readonly UnreachedNode[] }> {
  const path = '/v1/stores';
  const asked = await askNodes<{ items: readonly AgentStore[] }>(apis, nodesAfter(apis, undefined), path, scope);
  const own = asked.answers.flatMap(({ node, answer }) =>
    answer.items.flatMap((store) => (store.reach === 'node' ? [{ node, store }] : [])),
  );
  return { stores: merged(own), unreached: asked.unreached };
}
