import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import { isOnNode, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import { type ListedStore, type NodeStore, nodeStoreFrom, storesFrom } from './agent-answers.ts';
import type { Agents } from './agents.ts';
import type { Caches } from './caches.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import type { StoreObject } from './store-object.ts';

/** What a node's agent last said of the stores that are its own. */
export interface NodeView {
  readonly node: string;
  readonly stores: ReadonlyMap<string, NodeStore>;
}

/** The local stores of all nodes whose agents are connected, as they were a moment ago. */
export interface NodeStores extends Controller {
  of(node: string): NodeView | undefined;
  all(): Iterable<NodeView>;
  /** A volume is made there, or, with less than nothing, was not. */
  addPending(node: string, store: string, bytes: bigint): void;
  /**
   * How large the volumes are that were made there since it was last asked: for who spreads them. It is no room that is gone, since sizes are
   * limits that are filled one day or never. Whether one more may be made is said by the agent.
   */
  pendingBytes(node: string, store: string): bigint;
  /** When it was last seen open there since the agent came, as elapsed time. Undefined: never. */
  lastOpenAt(node: string, store: string): number | undefined;
  /**
   * Called with a node's name when what is known of it has changed, and what that was before. Undefined: nothing was, or its agent may have
   * followed a change of a store since, which need not be seen from here.
   */
  onChange(changed: (node: string, before: NodeView | undefined) => void): void;
}

const openIntervalMs = 30_000;
const closedIntervalMs = 10_000;
const requestTimeoutMs = 10_000;
const checksAtOnce = 4;
/** For an agent to have a store that is new, or changed; the next time twice as long. */
const firstRetryMs = 250;

export interface NodeStoresOptions {
  readonly agents: Agents;
  readonly clock: Clock;
  readonly caches: Pick<Caches, 'stores'>;
  readonly kinds: ReadonlyMap<string, StoreKind>;
}

export function createNodeStores({ agents, clock, caches, kinds }: NodeStoresOptions): NodeStores {
  const views = new Map<string, NodeView>();
  const pendingBytes = new Map<string, Map<string, bigint>>();
  const lastOpenAt = new Map<string, Map<string, number>>();
  const retryDelays = new Map<string, number>();
  /** Their agents may still have a store as it was said before. */
  const staleNodes = new Set<string>();
  const listeners = new Set<Parameters<NodeStores['onChange']>[0]>();
  const notify = (node: string, before: NodeView | undefined): void => {
    for (const listener of listeners) listener(node, before);
  };

  async function reconcile(node: string, scope: Scope): Promise<Done | Again> {
    if (!agents.nodes().includes(node)) {
      retryDelays.delete(node);
      staleNodes.delete(node);
      pendingBytes.delete(node);
      lastOpenAt.delete(node);
      const before = views.get(node);
      if (views.delete(node)) notify(node, before);
      return done;
    }
    const found = await listStores(node, scope).catch((thrown: unknown) => {
      const { message, reason } = stowageError(thrown);
      if (reason === 'agent-no-answer') closeAll(node, message);
      throw thrown;
    });
    const stores = new Map(found.map((store) => [store.name, store]));
    pendingBytes.delete(node);
    update(node, stores);
    return again(
      retryDelayFor(node, stores) ??
        (stores.values().every(({ isOpen }) => isOpen) ? openIntervalMs : closedIntervalMs),
    );
  }

  function update(node: string, stores: ReadonlyMap<string, NodeStore>): void {
    const before = views.get(node);
    const until = lastOpenAt.get(node) ?? new Map<string, number>();
    for (const seen of [before?.stores ?? [], stores])
      for (const [name, { isOpen }] of seen) if (isOpen) until.set(name, clock.elapsed());
    lastOpenAt.set(node, until);
    views.set(node, { node, stores });
    if (staleNodes.has(node)) notify(node, undefined);
    // Whoever waits for something there would be woken by every look at every node.
    else if (!isDeepStrictEqual(before?.stores, stores)) notify(node, before);
  }

  /** Its agent is connected, and what it said before is not so for ever. One that is lost is known to be. */
  function closeAll(node: string, problem: string): void {
    const before = views.get(node)?.stores;
    if (before === undefined) return;
    update(node, new Map([...before].map(([name, store]) => [name, closed(store, problem)])));
  }

  /** Agents learn of stores when we do. Undefined: it knows them all as they are, or does not want to. */
  function retryDelayFor(node: string, stores: ReadonlyMap<string, NodeStore>): number | undefined {
    const isMissing = [...caches.stores.all()].some(
      ({ metadata, spec }) => isOnNode(placementOf(kinds, spec.uri)) && !stores.has(metadata.name ?? ''),
    );
    const isSoon = isMissing || staleNodes.has(node);
    const ms = isSoon ? 2 * (retryDelays.get(node) ?? firstRetryMs / 2) : openIntervalMs;
    if (isSoon) retryDelays.set(node, ms);
    else retryDelays.delete(node);
    if (ms < openIntervalMs) return ms;
    staleNodes.delete(node);
    return undefined;
  }

  async function listStores(node: string, scope: Scope): Promise<readonly NodeStore[]> {
    const answer = await agents.call(node, { method: 'GET', path: '/v1/stores', deadlineMs: requestTimeoutMs }, scope);
    const isOwn = (name: string): boolean => isOnNode(placementOf(kinds, caches.stores.get(name)?.spec.uri ?? ''));
    const own = storesFrom(answer, isOwn).filter(({ kind }) => isOnNode(kinds.get(kind)?.placement));
    const seen = new Map<string, NodeStore>();
    await eachBounded(own, checksAtOnce, async (store) => void seen.set(store.name, await check(node, store, scope)));
    // As they were listed, whichever has answered first.
    return own.flatMap(({ name }) => seen.get(name) ?? []);
  }

  async function check(node: string, store: ListedStore, scope: Scope): Promise<NodeStore> {
    const path = `/v1/stores/${encodeURIComponent(store.name)}/check`;
    try {
      return nodeStoreFrom(
        store,
        await agents.call(node, { method: 'POST', path, body: {}, deadlineMs: requestTimeoutMs }, scope),
      );
    } catch (thrown) {
      // One disk that hangs says nothing of the others.
      const { message, reason } = stowageError(thrown);
      if (scope.signal.aborted || reason === 'agent-absent') throw thrown;
      return closed(store, message);
    }
  }

  const controller = createController({
    name: 'node-stores',
    clock,
    reconcile,
    workers: 16,
    maxRetryMs: openIntervalMs,
    // None that is silent keeps another waiting.
    groupOf: (node) => node,
  });
  agents.follow((node) => controller.add(node));
  const addAll = (): void => {
    retryDelays.clear();
    for (const node of agents.nodes()) controller.add(node);
  };
  addAll();
  // Known before any of them is asked: only those that are declared count.
  controller.follow(caches.stores, () => []);
  /** What was seen of it is of another place, or of the same with other limits. */
  const forget = ({ metadata: { name = '' } }: StoreObject): void => {
    for (const { node, stores } of Array.from(views.values())) {
      const others = new Map([...stores].filter(([one]) => one !== name));
      if (others.size < stores.size) update(node, others);
    }
    for (const node of agents.nodes()) staleNodes.add(node);
    addAll();
  };
  caches.stores.on({
    added: addAll,
    deleted: forget,
    changed: (now, before) => {
      if (!hasSameSpec(now, before)) forget(before);
    },
  });
  return {
    ...controller,
    of: (node) => views.get(node),
    all: () => views.values(),
    lastOpenAt: (node, store) => lastOpenAt.get(node)?.get(store),
    addPending: (node, store, bytes) => {
      const those = pendingBytes.get(node) ?? new Map<string, bigint>();
      pendingBytes.set(node, those.set(store, (those.get(store) ?? 0n) + bytes));
    },
    pendingBytes: (node, store) => pendingBytes.get(node)?.get(store) ?? 0n,
    onChange: (changed) => void listeners.add(changed),
  };
}

/**
 * Whether more can be made there than before. Free room comes and goes with all that others write: it counts where it is enough for somebody
 * now who was short of it.
 */
export function canTakeMore(
  now: NodeView | undefined,
  before: NodeView | undefined,
  short: readonly bigint[],
): boolean {
  return [...(now?.stores.values() ?? [])].some((seen) => {
    const was = before?.stores.get(seen.name);
    if (!seen.isOpen) return false;
    if (was?.isOpen !== true || was.identity !== seen.identity || !isDeepStrictEqual(was.access, seen.access))
      return true;
    const isFreed = seen.volumes < was.volumes && short.length > 0;
    return isFreed || short.some((bytes) => was.freeBytes < bytes && bytes <= seen.freeBytes);
  });
}

const closed = (store: Omit<NodeStore, 'totalBytes' | 'freeBytes'>, problem: string): NodeStore => ({
  ...store,
  isOpen: false,
  problem,
  totalBytes: 0n,
  freeBytes: 0n,
});

/** Their statuses change all the time. */
function hasSameSpec(one: StoreObject, other: StoreObject): boolean {
  const said = ({ metadata: { uid }, spec: { uri, options = {} } }: StoreObject): object => ({ uid, uri, options });
  return isDeepStrictEqual(said(one), said(other));
}
