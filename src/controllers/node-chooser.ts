import type { Clock } from '#base/clock.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import type { Node } from '#wire/kube/types.ts';
import type { Agents } from './agents.ts';
import type { Caches } from './caches.ts';
import { type Again, again } from './machinery/outcome.ts';
import { outOfService } from './names.ts';
import { noAgents, noRoom } from './node-errors.ts';
import type { NodeStores } from './node-stores.ts';
import type { NodeVolumes } from './node-volumes.ts';
import { unsupportedAccess, type VolumeRequest } from './provisioner.ts';

export interface NodeChooserOptions {
  readonly clock: Clock;
  readonly caches: Caches;
  readonly agents: Agents;
  readonly stores: NodeStores;
  readonly volumes: NodeVolumes;
  /** By claim: the nodes that may have created its volume, in the order in which they were asked. */
  readonly askedNodes: ReadonlyMap<string, readonly string[]>;
}

/** Chooses the node of a volume if the scheduler has not. */
export interface NodeChooser {
  /** Returns the previous choice for this claim, if there was one. `Again` if the choice is not possible yet. */
  choose(want: VolumeRequest, store: string): string | Again;
  /** The node refused to create the volume, and a retry would not help soon. */
  refused(uid: string, node: string): void;
  /** The requested sizes for which no node had enough space, of claims that still wait. */
  unmetSizes(): readonly bigint[];
  forget(uid: string): void;
}

/**
 * How long agents may take to reconnect, and stores to reopen. After that, another node is chosen: a volume that the absent node may have
 * created for the claim is empty, and is deleted when the node is back.
 */
const agentGraceMs = 60_000;
const startUpMs = 5_000;
export const retryMs = 1_000;

export function createNodeChooser({
  clock,
  caches,
  agents,
  stores,
  volumes,
  askedNodes,
}: NodeChooserOptions): NodeChooser {
  const startedAt = clock.elapsed();
  const lostAt = new Map<string, number>();
  const cameAt = new Map<string, number>();
  const refusals = new Map<string, Set<string>>();
  const unmetSizes = new Map<string, bigint>();
  /** Unbound claims in the first list: an earlier leader may have chosen a node for them. */
  const inherited = new Set<string>();
  caches.claims.on({
    added: ({ metadata: { uid = '' }, spec }) => {
      if (!caches.claims.synced && (spec.volumeName ?? '') === '') inherited.add(uid);
    },
  });
  agents.follow((node) => {
    const [now, before] = agents.nodes().includes(node) ? [cameAt, lostAt] : [lostAt, cameAt];
    now.set(node, clock.elapsed());
    before.delete(node);
  });

  const isThere = (node: string): boolean => agents.nodes().includes(node);
  const isOpen = (node: string, store: string): boolean =>
    isThere(node) && stores.of(node)?.stores.get(store)?.isOpen === true;
  /** Whether the store was open recently. The agent of a node whose disk hangs stays connected, so this does not rely on the connection. */
  function mayBecomeOpen(node: string, store: string): boolean {
    const since = isThere(node) ? (stores.lastOpenAt(node, store) ?? cameAt.get(node)) : lostAt.get(node);
    return isOpen(node, store) || clock.elapsed() - (since ?? startedAt) < agentGraceMs;
  }

  const hasRefused = (uid: string, node: string): boolean => refusals.get(uid)?.has(node) === true;

  /** The node that has, or may have, the claim's volume, unless it refused later. */
  function previousChoice(uid: string, store: string): string | Again | undefined {
    const last = askedNodes.get(uid)?.findLast((node) => !hasRefused(uid, node));
    const found = volumes.nodesWithVolumeFor(uid).filter((node) => isThere(node) && !hasRefused(uid, node));
    const before = [last ?? [], found].flat().find((node) => mayBecomeOpen(node, store));
    if (before !== undefined) return isOpen(before, store) ? before : again(retryMs);
    if (!inherited.has(uid)) return undefined;
    const isOver = clock.elapsed() - startedAt >= agentGraceMs;
    const isKnown = [...caches.nodes.all()].every(
      (node) => isOutOfService(node) || volumes.isSearched(node.metadata.name ?? ''),
    );
    return isOver || isKnown ? undefined : again(retryMs);
  }

  /** Whether connected agents have not reported their stores yet, or no agent has had the time to connect. */
  const isSettling = (): boolean => {
    const isNew = (node: string): boolean => clock.elapsed() - (cameAt.get(node) ?? startedAt) < agentGraceMs;
    const there = agents.nodes();
    return there.length === 0 ? isNew('') : there.some((node) => stores.of(node) === undefined && isNew(node));
  };

  /** At start-up all agents connect at once, and the first one to report would get all volumes. */
  const isStartingUp = (): boolean =>
    clock.elapsed() - startedAt < startUpMs && agents.nodes().some((node) => stores.of(node) === undefined);

  function choose(want: VolumeRequest, store: string): string | Again {
    const { uid } = want.claim;
    if (isStartingUp()) return again(retryMs);
    const open = [...stores.all()].flatMap(({ node, stores: those }) => {
      const [object, seen] = [caches.nodes.get(node), those.get(store)];
      return object !== undefined && seen?.isOpen === true && isSchedulable(object, want) ? { node, seen } : [];
    });
    if (open.length === 0 && isSettling()) return again(retryMs);
    if (open.length === 0) throw noAgents(store);
    if (!open.some(({ seen }) => seen.access.includes(want.access))) throw unsupportedAccess(store, want.access);
    const fitting = open.filter(({ seen }) => seen.access.includes(want.access) && seen.freeBytes >= want.bytes);
    const left = fitting.filter(({ node }) => !hasRefused(uid, node));
    const [best] = left
      .map(({ node, seen }) => ({ node, room: seen.freeBytes - stores.pendingBytes(node, store) }))
      .toSorted(byRoom);
    if (best !== undefined) return best.node;
    if (isSettling()) return again(retryMs);
    // The next attempt asks all nodes again.
    refusals.delete(uid);
    unmetSizes.set(uid, want.bytes);
    throw noRoom(store, open.length);
  }

  return {
    choose: (want, store) => previousChoice(want.claim.uid, store) ?? choose(want, store),
    refused: (uid, node) => void refusals.set(uid, (refusals.get(uid) ?? new Set()).add(node)),
    unmetSizes: () => [...unmetSizes.values()],
    forget: (uid) => {
      refusals.delete(uid);
      unmetSizes.delete(uid);
      inherited.delete(uid);
    },
  };
}

const isOutOfService = ({ spec }: Node): boolean => (spec?.taints ?? []).some(({ key }) => key === outOfService);

/** Applies the rules of the scheduler. */
function isSchedulable(node: Node, { allowed }: VolumeRequest): boolean {
  const { labels = {} } = node.metadata;
  if (isOutOfService(node) || node.spec?.unschedulable === true || labels[nodeTopologyKey] === undefined) return false;
  if (allowed.length === 0) return true;
  return allowed.some(({ matchLabelExpressions = [] }) =>
    matchLabelExpressions.every(({ key, values }) => values.includes(labels[key] ?? '')),
  );
}

interface Candidate {
  readonly node: string;
  readonly room: bigint;
}

/** The most free space first, then by name. */
function byRoom(a: Candidate, b: Candidate): number {
  if (a.room !== b.room) return a.room > b.room ? -1 : 1;
  return a.node < b.node ? -1 : 1;
}
