import { createHash } from 'node:crypto';

/** The topology key of the local driver. The kubelet sets it as a node label when the driver registers. */
export const nodeTopologyKey = 'local.stowage.dev/node';

/**
 * A node's value for the topology key. Derived from the node's name, since a compromised kubelet could set any label value. Label values
 * have at most 63 characters of a small set, and two nodes must never get the same value.
 */
export function topologyOfNode(name: string): string {
  if (/^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/.test(name)) return name;
  const digest = createHash('sha256').update(name).digest('hex').slice(0, 16);
  const readable = name.replace(/[^A-Za-z0-9_.-]/g, '-').replace(/^[^A-Za-z0-9]+/, '');
  return readable === '' ? digest : `${readable.slice(0, 46)}-${digest}`;
}
