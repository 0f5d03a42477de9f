import type { Caches } from './caches.ts';
import type { Looks } from './health-looks.ts';

/**
 * The nodes on which a volume, or a store, is unhealthy. They are kept on the object, since the next leader has to know them: it
 * calls nothing healthy before it has heard from each of them. The message of the condition is for people, and names only some.
 */
export type UnhealthyNodes = readonly string[];

/** More names might not fit on the object: then all nodes of the cluster count. */
const mostNames = 500;
const everyNode = '*';

export interface KnownNodes {
  readonly looks: Pick<Looks, 'isKnown'>;
  readonly caches: Pick<Caches, 'nodes'>;
}

/** What to keep: the nodes with a problem now, and of those that had one before the nodes that have not been heard from. */
export function keptNodes(now: Iterable<string>, before: UnhealthyNodes, known: KnownNodes): UnhealthyNodes {
  const all = [...new Set([...now, ...unheardOf(before, known)])].sort();
  return all.length > mostNames ? [everyNode] : all;
}

/** Those that are still in the cluster, and whose agents have not said how they are. */
export function unheardOf(before: UnhealthyNodes, { looks, caches }: KnownNodes): readonly string[] {
  const isUnheardOf = (node: string): boolean => caches.nodes.get(node) !== undefined && !looks.isKnown(node);
  if (!before.includes(everyNode)) return before.filter(isUnheardOf);
  return Array.from(caches.nodes.all(), ({ metadata: { name = '' } }) => name).filter(isUnheardOf);
}

/** As it is written in an annotation. */
export const textOf = (nodes: UnhealthyNodes): string => nodes.join(' ');
export const nodesIn = (text: string | undefined): UnhealthyNodes => (text ?? '').split(' ').filter(Boolean);
