import type { Clock } from '#base/clock.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import type { Node } from '#wire/kube/types.ts';
import type { Agents } from './agents.ts';
import type { Caches } from './caches.ts';
import { type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { outOfServiceTaint } from './names.ts';
import { noAgents, notEnoughSpace } from './node-errors.ts';
import type { NodeStores } from './node-stores.ts';
import type { NodeVolumes } from './node-volumes.ts';
import { unsupportedAccess, type VolumeRequest } from './provisioner.ts';

export interface NodeChooserOptions {
  readonly clock: Clock;
  readonly caches: Caches;
  readonly agents: Agents;
  readonly stores: NodeStores;
  readonly volumes: NodeVolumes;
  /** By claim: the nodes that may have created its volume, in the order of the requests. */
  readonly askedNodes: ReadonlyMap<string, readonly string[]>;
}

/** Chooses the node of a volume if the scheduler has not. */
export interface NodeChooser {
  /** Returns the previous choice for this claim, if there was one. `Again` if the choice is not possible yet. */
  choose(request: VolumeRequest, store: string): string | RequeueAfter;
  /** Records that the node refused to create the volume, and that a retry would not help soon. */
  recordRefusal(uid: string, node: string): void;
  /** The requested sizes of waiting claims for which no node had enough space. */
  unmetSizes(): readonly bigint[];
  forget(uid: string): void;
}

/**
 * How long agents may take to reconnect, and stores to reopen. After that, choose another node: a volume that the absent node may have
 * created for the claim is empty, and is deleted when the node is back.
 */
const agentGraceMs = 60_000;
const startUpGraceMs = 5_000;
export const chooseRetryMs = 1_000;

export function createNodeChooser({
  clock,
  caches,
  agents,
  stores,
  volumes,
  askedNodes,
}: NodeChooserOptions): NodeChooser {
  const startedAt = clock.elapsed();
  const disconnectedAt = new Map<string, number>();
  const connectedAt = new Map<string, number>();
  const refusals = new Map<string, Set<string>>();
  const unmetSizes = new Map<string, bigint>();
  /** Unbound claims in the first list: an earlier leader may have chosen a node for them. */
  const inheritedClaims = new Set<string>();
  caches.claims.on({
    added: ({ metadata: { uid = '' }, spec }) => {
      if (!caches.claims.synced && (spec.volumeName ?? '') === '') inheritedClaims.add(uid);
    },
  });
  agents.follow((node) => {
    const [now, before] = agents.nodes().includes(node) ? [connectedAt, disconnectedAt] : [disconnectedAt, connectedAt];
    now.set(node, clock.elapsed());
    before.delete(node);
  });

  const isConnected = (node: string): boolean => agents.nodes().includes(node);
  const isOpen = (node: string, store: string): boolean =>
    isConnected(node) && stores.reportOf(node)?.stores.get(store)?.isOpen === true;
  /** Whether the store was open recently. The agent of a node whose disk hangs stays connected, so this does not rely on the connection. */
  function mayBecomeOpen(node: string, store: string): boolean {
    const availableSince = isConnected(node)
      ? (stores.lastOpenAt(node, store) ?? connectedAt.get(node))
      : disconnectedAt.get(node);
    return isOpen(node, store) || clock.elapsed() - (availableSince ?? startedAt) < agentGraceMs;
  }

  const hasRefused = (uid: string, node: string): boolean => refusals.get(uid)?.has(node) === true;

  /** The node that has, or may have, the claim's volume, unless it refused later. */
  function previousChoice(uid: string, store: string): string | RequeueAfter | undefined {
    const last = askedNodes.get(uid)?.findLast((node) => !hasRefused(uid, node));
    const found = volumes.nodesWithVolumeFor(uid).filter((node) => isConnected(node) && !hasRefused(uid, node));
    const previous = [last ?? [], found].flat().find((node) => mayBecomeOpen(node, store));
    if (previous !== undefined) return isOpen(previous, store) ? previous : requeueAfter(chooseRetryMs);
    if (!inheritedClaims.has(uid)) return undefined;
    const isGraceOver = clock.elapsed() - startedAt >= agentGraceMs;
    const areAllSearched = [...caches.nodes.all()].every(
      (node) => isOutOfService(node) || volumes.isSearched(node.metadata.name ?? ''),
    );
    return isGraceOver || areAllSearched ? undefined : requeueAfter(chooseRetryMs);
  }

  /** Whether connected agents have not reported their stores yet, or no agent has had the time to connect. */
  const isSettling = (): boolean => {
    const isNew = (node: string): boolean => clock.elapsed() - (connectedAt.get(node) ?? startedAt) < agentGraceMs;
    const connected = agents.nodes();
    return connected.length === 0
      ? isNew('')
      : connected.some((node) => stores.reportOf(node) === undefined && isNew(node));
  };

  /** At start-up all agents connect at once, and the first one to report would get all volumes. */
  const isStartingUp = (): boolean =>
    clock.elapsed() - startedAt < startUpGraceMs && agents.nodes().some((node) => stores.reportOf(node) === undefined);

  function choose(request: VolumeRequest, store: string): string | RequeueAfter {
    const { uid } = request.claim;
    if (isStartingUp()) return requeueAfter(chooseRetryMs);
    const open = [...stores.all()].flatMap(({ node, stores: nodeStores }) => {
      const [object, nodeStore] = [caches.nodes.get(node), nodeStores.get(store)];
      return object !== undefined && nodeStore?.isOpen === true && isSchedulable(object, request)
        ? { node, seen: nodeStore }
        : [];
    });
    if (open.length === 0 && isSettling()) return requeueAfter(chooseRetryMs);
    if (open.length === 0) throw noAgents(store);
    if (!open.some(({ seen }) => seen.access.includes(request.access))) throw unsupportedAccess(store, request.access);
    const fitting = open.filter(({ seen }) => seen.access.includes(request.access) && seen.freeBytes >= request.bytes);
    const remaining = fitting.filter(({ node }) => !hasRefused(uid, node));
    const [best] = remaining
      .map(({ node, seen }) => ({ node, availableBytes: seen.freeBytes - stores.pendingBytes(node, store) }))
      .toSorted(compareBySpace);
    if (best !== undefined) return best.node;
    if (isSettling()) return requeueAfter(chooseRetryMs);
    // The next attempt asks all nodes again.
    refusals.delete(uid);
    unmetSizes.set(uid, request.bytes);
    throw notEnoughSpace(store, open.length);
  }

  return {
    choose: (request, store) => previousChoice(request.claim.uid, store) ?? choose(request, store),
    recordRefusal: (uid, node) => void refusals.set(uid, (refusals.get(uid) ?? new Set()).add(node)),
    unmetSizes: () => [...unmetSizes.values()],
    forget: (uid) => {
      refusals.delete(uid);
      unmetSizes.delete(uid);
      inheritedClaims.delete(uid);
    },
  };
}

const isOutOfService = ({ spec }: Node): boolean => (spec?.taints ?? []).some(({ key }) => key === outOfServiceTaint);

/** Applies the rules of the scheduler. */
function isSchedulable(node: Node, { allowedTopologies }: VolumeRequest): boolean {
  const { labels = {} } = node.metadata;
  if (isOutOfService(node) || node.spec?.unschedulable === true || labels[nodeTopologyKey] === undefined) return false;
  if (allowedTopologies.length === 0) return true;
  return allowedTopologies.some(({ matchLabelExpressions = [] }) =>
    matchLabelExpressions.every(({ key, values }) => values.includes(labels[key] ?? '')),
  );
}

interface Candidate {
  readonly node: string;
  readonly availableBytes: bigint;
}

/** The most free space first, then by name. */
function compareBySpace(a: Candidate, b: Candidate): number {
  if (a.availableBytes !== b.availableBytes) return a.availableBytes > b.availableBytes ? -1 : 1;
  return a.node < b.node ? -1 : 1;
}
