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
  /** The nodes that may have made a claim's volume by now, the last one last. */
  readonly askedNodes: ReadonlyMap<string, readonly string[]>;
}

/** Which node a volume is made on, where the scheduler has not said so. */
export interface NodeChooser {
  /** The same as before, where it was chosen before. Again: not known yet. */
  choose(want: VolumeRequest, store: string): string | Again;
  /** That node has not made it, and will not soon. */
  refused(uid: string, node: string): void;
  forget(uid: string): void;
}

/**
 * For agents that were there before to be there again, and for stores to be open again. Longer is not waited: whatever one that stays away has made
 * for the claim is empty, and is taken away when it is back.
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
  /** Claims that were there before us: another controller may have chosen for them. Later ones are ours alone, since one leads at a time. */
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
  /** Not too long ago it could make volumes. One whose disk is silent is as good as one that is off, and its agent stays. */
  function mayBecomeOpen(node: string, store: string): boolean {
    const since = isThere(node) ? (stores.lastOpenAt(node, store) ?? cameAt.get(node)) : lostAt.get(node);
    return isOpen(node, store) || clock.elapsed() - (since ?? startedAt) < agentGraceMs;
  }

  const hasRefused = (uid: string, node: string): boolean => refusals.get(uid)?.has(node) === true;

  /** Where it is, or may be. One that has refused since cannot give it, whatever it has. */
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

  /** Those that are there have not all been askedNodes yet, or none had the time to come. */
  const isSettling = (): boolean => {
    const isNew = (node: string): boolean => clock.elapsed() - (cameAt.get(node) ?? startedAt) < agentGraceMs;
    const there = agents.nodes();
    return there.length === 0 ? isNew('') : there.some((node) => stores.of(node) === undefined && isNew(node));
  };

  /** At first the agents come all at once, and the first one to be askedNodes would get everything. */
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
    // All are askedNodes again the next time.
    refusals.delete(uid);
    throw noRoom(store, open.length);
  }

  return {
    choose: (want, store) => previousChoice(want.claim.uid, store) ?? choose(want, store),
    refused: (uid, node) => void refusals.set(uid, (refusals.get(uid) ?? new Set()).add(node)),
    forget: (uid) => {
      refusals.delete(uid);
      inherited.delete(uid);
    },
  };
}

const isOutOfService = ({ spec }: Node): boolean => (spec?.taints ?? []).some(({ key }) => key === outOfService);

/** As the scheduler would have it. */
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

/** The most room first; the same order for the same. */
function byRoom(a: Candidate, b: Candidate): number {
  if (a.room !== b.room) return a.room > b.room ? -1 : 1;
  return a.node < b.node ? -1 : 1;
}
