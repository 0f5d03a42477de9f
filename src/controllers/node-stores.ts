import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from '#core/errors.ts';
import { isOnNode, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import type { NodeStore } from './agent-answers.ts';
import type { Agents } from './agents.ts';
import type { Caches } from './caches.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { closedStore, listNodeStores } from './node-store-checks.ts';
import type { StoreObject } from './store-object.ts';

/** The last report of a node's agent about the node's own stores. */
export interface NodeStoresReport {
  readonly node: string;
  readonly stores: ReadonlyMap<string, NodeStore>;
}

/** The recent state of the local stores of all nodes whose agents are connected. */
export interface NodeStores extends Controller {
  reportOf(node: string): NodeStoresReport | undefined;
  all(): Iterable<NodeStoresReport>;
  /** Counts a volume that is being created. Call it with a negative size if the creation failed. */
  addPending(node: string, store: string, bytes: bigint): void;
  /**
   * The total size of the volumes created on this store of the node since the last report, for spreading volumes over nodes. It must not be
   * subtracted from the free space: sizes are limits that may never be filled. The agent decides whether one more volume fits.
   */
  pendingBytes(node: string, store: string): bigint;
  /** When the store was last reported open since the agent connected, by the clock's `elapsed`. Undefined: never. */
  lastOpenAt(node: string, store: string): number | undefined;
  /**
   * Calls back when the report of a node changes, with the report before. Undefined if there was none, or if the agent may have applied a
   * change of a Store object meanwhile, which the report need not show.
   */
  onChange(changed: (node: string, before: NodeStoresReport | undefined) => void): void;
}

const openIntervalMs = 30_000;
const closedIntervalMs = 10_000;
/** The first delay for an agent to apply a new or changed Store object; it doubles each time. */
const firstRetryMs = 250;

export interface NodeStoresOptions {
  readonly agents: Agents;
  readonly clock: Clock;
  readonly caches: Pick<Caches, 'stores'>;
  readonly kinds: ReadonlyMap<string, StoreKind>;
}

export function createNodeStores(options: NodeStoresOptions): NodeStores {
  const { agents, clock, caches } = options;
  const reports = new Map<string, NodeStoresReport>();
  const pendingBytes = createPendingBytes();
  const lastOpenAt = new Map<string, Map<string, number>>();
  const retryDelays = new Map<string, number>();
  /** Nodes whose agents may not have applied the last change of a Store object. */
  const staleNodes = new Set<string>();
  const listeners = new Set<Parameters<NodeStores['onChange']>[0]>();
  const notify = (node: string, before: NodeStoresReport | undefined): void => {
    for (const listener of listeners) listener(node, before);
  };

  async function reconcile(node: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    if (!agents.nodes().includes(node)) {
      retryDelays.delete(node);
      staleNodes.delete(node);
      pendingBytes.forget(node);
      lastOpenAt.delete(node);
      const before = reports.get(node);
      if (reports.delete(node)) notify(node, before);
      return done;
    }
    const found = await listNodeStores(node, options, scope).catch((thrown: unknown) => {
      const { message, reason } = stowageError(thrown);
      if (reason === 'agent-no-answer') markClosed(node, message);
      throw thrown;
    });
    const stores = new Map(found.map((store) => [store.name, store]));
    pendingBytes.forget(node);
    update(node, stores);
    return requeueAfter(
      retryDelayFor(node, stores) ??
        (stores.values().every(({ isOpen }) => isOpen) ? openIntervalMs : closedIntervalMs),
    );
  }

  function update(node: string, stores: ReadonlyMap<string, NodeStore>): void {
    const before = reports.get(node);
    const openTimes = lastOpenAt.get(node) ?? new Map<string, number>();
    for (const reported of [before?.stores ?? [], stores])
      for (const [name, { isOpen }] of reported) if (isOpen) openTimes.set(name, clock.elapsed());
    lastOpenAt.set(node, openTimes);
    reports.set(node, { node, stores });
    if (staleNodes.has(node)) notify(node, undefined);
    // Without a change do not notify: it would wake every waiting claim with every poll of every node.
    else if (!isDeepStrictEqual(before?.stores, stores)) notify(node, before);
  }

  /**
   * Marks all stores of a connected agent that does not answer as closed: its last report must not stay valid. A lost connection is handled
   * elsewhere.
   */
  function markClosed(node: string, problem: string): void {
    const before = reports.get(node)?.stores;
    if (before === undefined) return;
    update(node, new Map([...before].map(([name, store]) => [name, closedStore(store, problem)])));
  }

  /**
   * The delay until the next poll of an agent that has not applied all Store objects yet. Undefined if it has applied them, or after too
   * many retries.
   */
  function retryDelayFor(node: string, stores: ReadonlyMap<string, NodeStore>): number | undefined {
    const isIncomplete = lacksStores(stores, options) || staleNodes.has(node);
    const ms = isIncomplete ? 2 * (retryDelays.get(node) ?? firstRetryMs / 2) : openIntervalMs;
    if (isIncomplete) retryDelays.set(node, ms);
    else retryDelays.delete(node);
    if (ms < openIntervalMs) return ms;
    staleNodes.delete(node);
    return undefined;
  }

  const controller = createController({
    name: 'node-stores',
    clock,
    reconcile,
    workers: 16,
    maxRetryMs: openIntervalMs,
    // An agent that does not answer must not delay other agents.
    groupOf: (node) => node,
  });
  agents.follow((node) => controller.add(node));
  const addAll = (): void => {
    retryDelays.clear();
    for (const node of agents.nodes()) controller.add(node);
  };
  addAll();
  // Wait for this cache: only stores with a Store object count.
  controller.follow(caches.stores, () => []);
  /** Drops the reports about a store after its Store object changed: they are about another location, or other limits. */
  const dropReports = ({ metadata: { name = '' } }: StoreObject): void => {
    for (const { node, stores } of Array.from(reports.values())) {
      const otherStores = new Map([...stores].filter(([one]) => one !== name));
      if (otherStores.size < stores.size) update(node, otherStores);
    }
    for (const node of agents.nodes()) staleNodes.add(node);
    addAll();
  };
  caches.stores.on({
    added: addAll,
    deleted: dropReports,
    changed: (now, before) => {
      if (!hasSameSpec(now, before)) dropReports(before);
    },
  });
  return {
    ...controller,
    reportOf: (node) => reports.get(node),
    all: () => reports.values(),
    lastOpenAt: (node, store) => lastOpenAt.get(node)?.get(store),
    addPending: pendingBytes.add,
    pendingBytes: pendingBytes.get,
    onChange: (changed) => void listeners.add(changed),
  };
}

/** Whether the node's report lacks a local store that has a Store object. */
const lacksStores = (
  stores: NodeStoresReport['stores'],
  { caches, kinds }: Pick<NodeStoresOptions, 'caches' | 'kinds'>,
): boolean =>
  [...caches.stores.all()].some(
    ({ metadata, spec }) => isOnNode(placementOf(kinds, spec.uri)) && !stores.has(metadata.name ?? ''),
  );

/** The total size of the volumes that were created since the last report of a node, by store. */
function createPendingBytes() {
  const byNode = new Map<string, Map<string, bigint>>();
  return {
    add: (node: string, store: string, bytes: bigint): void => {
      const sizes = byNode.get(node) ?? new Map<string, bigint>();
      byNode.set(node, sizes.set(store, (sizes.get(store) ?? 0n) + bytes));
    },
    get: (node: string, store: string): bigint => byNode.get(node)?.get(store) ?? 0n,
    forget: (node: string): void => void byNode.delete(node),
  };
}

/**
 * Whether a request that failed before may succeed now. Free space fluctuates, so more of it counts only if it is now enough for one of
 * `unmetSizes`.
 */
export function mayRetrySucceed(
  now: NodeStoresReport | undefined,
  before: NodeStoresReport | undefined,
  unmetSizes: readonly bigint[],
): boolean {
  return [...(now?.stores.values() ?? [])].some((seen) => {
    const previous = before?.stores.get(seen.name);
    if (!seen.isOpen) return false;
    if (
      previous?.isOpen !== true ||
      previous.identity !== seen.identity ||
      !isDeepStrictEqual(previous.access, seen.access)
    )
      return true;
    const isFreed = seen.volumes < previous.volumes && unmetSizes.length > 0;
    return isFreed || unmetSizes.some((bytes) => previous.freeBytes < bytes && bytes <= seen.freeBytes);
  });
}

/** Ignores the status, which changes all the time. */
function hasSameSpec(one: StoreObject, other: StoreObject): boolean {
  const comparedFields = ({ metadata: { uid }, spec: { uri, options = {} } }: StoreObject): object => ({
    uid,
    uri,
    options,
  });
  return isDeepStrictEqual(comparedFields(one), comparedFields(other));
}
