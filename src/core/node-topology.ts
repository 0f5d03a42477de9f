import { createHash } from 'node:crypto';

/** By it nodes say where a volume of the local driver can be used; kubelets put it on them when the driver is registered. */
export const nodeTopologyKey = 'local.stowage.dev/node';

/**
 * What a node has there. It follows from the node's name, since whoever has a kubelet can write anything there. Values of labels are at
 * most 63 of few letters; nodes are named by their administrators, and must not become one.
 */
export function topologyOfNode(name: string): string {
  if (/^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/.test(name)) return name;
  const digest = createHash('sha256').update(name).digest('hex').slice(0, 16);
  const readable = name.replace(/[^A-Za-z0-9_.-]/g, '-').replace(/^[^A-Za-z0-9]+/, '');
  return readable === '' ? digest : `${readable.slice(0, 46)}-${digest}`;
}
