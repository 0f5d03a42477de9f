import type { Scope } from '#base/log.ts';
import { localDriver } from '#core/csi-drivers.ts';
import { nodeTopologyKey, topologyOfNode } from '#core/node-topology.ts';
import { nodes } from '#wire/kube/resources.ts';
import type { PersistentVolume } from '#wire/kube/types.ts';
import type { Agents } from './agents.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { handleAndStoreOf, topologiesOf } from './handles.ts';
import { nodeOfVolumeGone, nodeOfVolumeUnknown, notRegistered } from './node-errors.ts';

/** Finds the nodes of volumes on node-local stores. */
export interface VolumeNodes {
  /** The value of the topology label that the kubelet set on the node. Undefined if there is no such node. */
  topologyOf(name: string, scope: Scope): Promise<string | undefined>;
  /** The names of the nodes in the volume's node affinity. */
  namesOf(volume: Pick<PersistentVolume, 'spec'>): readonly string[];
  /** The node of the volume. Throws if the node is unknown or gone. */
  nodeOf(volume: PersistentVolume): string;
}

export function createVolumeNodes(
  client: ControllerContext['client'],
  caches: Pick<ControllerContext['caches'], 'nodes'>,
  agents: Agents,
): VolumeNodes {
  async function topologyOf(name: string, scope: Scope): Promise<string | undefined> {
    const node = caches.nodes.get(name) ?? (await ignoreNotFound(client.get(nodes, { name }, scope.signal)));
    if (node === undefined) return undefined;
    const value = topologyOfNode(name);
    if (node.metadata.labels?.[nodeTopologyKey] !== value) throw notRegistered(name, localDriver.name);
    return value;
  }

  function namesOf(volume: Pick<PersistentVolume, 'spec'>): readonly string[] {
    return topologiesOf(volume).map((value) => {
      // Derive the value from the node name. A compromised kubelet can change its node's labels.
      const known = [...caches.nodes.all()].find(({ metadata: { name = '' } }) => topologyOfNode(name) === value);
      return known?.metadata.name ?? value;
    });
  }

  function nodeOf(volume: PersistentVolume): string {
    const { handle } = handleAndStoreOf(volume);
    const [node] = namesOf(volume);
    if (node === undefined) throw nodeOfVolumeUnknown(handle);
    if (!agents.nodes().includes(node) && caches.nodes.get(node) === undefined) throw nodeOfVolumeGone(handle, node);
    return node;
  }

  return { topologyOf, namesOf, nodeOf };
}
