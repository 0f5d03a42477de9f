import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import { isOnNode, placementOf } from '#core/placement.ts';
import { type ListedStore, type NodeStore, nodeStoreFrom, storesFrom } from './agent-answers.ts';
import type { Agents } from './agents.ts';
import type { NodeStoresOptions } from './node-stores.ts';

const requestTimeoutMs = 10_000;
const maxConcurrentChecks = 4;

/** Lists a node's own stores through its agent, and checks each of them. */
export async function listNodeStores(
  node: string,
  { agents, caches, kinds }: Omit<NodeStoresOptions, 'clock'>,
  scope: Scope,
): Promise<readonly NodeStore[]> {
  const answer = await agents.call(node, { method: 'GET', path: '/v1/stores', deadlineMs: requestTimeoutMs }, scope);
  const isOwn = (name: string): boolean => isOnNode(placementOf(kinds, caches.stores.get(name)?.spec.uri ?? ''));
  const ownStores = storesFrom(answer, isOwn).filter(({ kind }) => isOnNode(kinds.get(kind)?.placement));
  const checked = new Map<string, NodeStore>();
  await eachBounded(
    ownStores,
    maxConcurrentChecks,
    async (store) => void checked.set(store.name, await checkStore(node, store, agents, scope)),
  );
  // In the order of the list, not of the answers.
  return ownStores.flatMap(({ name }) => checked.get(name) ?? []);
}

async function checkStore(node: string, store: ListedStore, agents: Agents, scope: Scope): Promise<NodeStore> {
  const path = `/v1/stores/${encodeURIComponent(store.name)}/check`;
  try {
    return nodeStoreFrom(
      store,
      await agents.call(node, { method: 'POST', path, body: {}, deadlineMs: requestTimeoutMs }, scope),
    );
  } catch (thrown) {
    // A disk that hangs must not affect other stores.
    const { message, reason } = stowageError(thrown);
    if (scope.signal.aborted || reason === 'agent-absent') throw thrown;
    return closedStore(store, message);
  }
}

/** A store that cannot be used, with the reason. */
export const closedStore = (store: Omit<NodeStore, 'totalBytes' | 'freeBytes'>, problem: string): NodeStore => ({
  ...store,
  isOpen: false,
  problem,
  totalBytes: 0n,
  freeBytes: 0n,
});
