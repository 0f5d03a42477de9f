import { nodeTopologyKey } from '#core/node-topology.ts';
import type { Caches } from './caches.ts';
import type { MountProblems } from './mount-problems.ts';

/**
 * The nodes on which a volume, or a store, is unhealthy. They are recorded on the object for the next leader, which reports the object as
 * healthy only after each of them has reported. The message of the condition is for users, and names only some nodes.
 */
export type UnhealthyNodes = readonly string[];

/** More names might not fit on the object: then every node on which an agent was ever registered counts. */
const maxRecordedNodes = 500;
const everyNode = '*';
/** For an unhealthy object without recorded nodes: an earlier version wrote them only into the message. */
export const anyNode: UnhealthyNodes = [everyNode];

export interface KnownNodes {
  readonly mountProblems: Pick<MountProblems, 'isConfirmed'>;
  readonly caches: Pick<Caches, 'nodes'>;
}

/** The nodes to record: nodes that have a problem now, and nodes that had one before and have not reported since. */
export function nodesToKeep(now: Iterable<string>, before: UnhealthyNodes, known: KnownNodes): UnhealthyNodes {
  const all = [...new Set([...now, ...nodesNotReported(before, known)])].sort();
  return all.length > maxRecordedNodes ? [everyNode] : all;
}

/** The nodes that are still in the cluster, and whose agents have not reported to this leader. */
export function nodesNotReported(before: UnhealthyNodes, { mountProblems, caches }: KnownNodes): readonly string[] {
  const isMissing = (node: string): boolean => caches.nodes.get(node) !== undefined && !mountProblems.isConfirmed(node);
  if (!before.includes(everyNode)) return before.filter(isMissing);
  // A node without the label never had an agent, so no agent would ever report for it.
  const withAgent = [...caches.nodes.all()].filter(({ metadata }) => metadata.labels?.[nodeTopologyKey] !== undefined);
  return withAgent.map(({ metadata: { name = '' } }) => name).filter(isMissing);
}

/** The value of the annotation. */
export const annotationOf = (nodes: UnhealthyNodes): string => nodes.join(' ');
/** Parses the annotation of an unhealthy object. */
export const nodesIn = (text: string | undefined): UnhealthyNodes => text?.split(' ').filter(Boolean) ?? anyNode;
