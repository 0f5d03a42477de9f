import { type MountTable, readMountTable } from '#clients/mounter/mountinfo.ts';
import { StowageError } from '#core/errors.ts';
import type { Refuse } from './store-places.ts';

/** In the path of every volume that a kubelet makes for a pod, such as an emptyDir. */
const ofPod = '/volumes/kubernetes.io~';

/**
 * In the container of a pod: only what the node shows it is on the node. All else, its own root and what the kubelet made for the
 * pod, is gone with the pod, and with it every volume there. The kind of file system does not tell: a node can be an overlay, too.
 * Refused also where nothing is there yet: whoever makes that folder on the node makes it for nothing.
 */
export function onNode(readTable: () => Promise<MountTable> = readMountTable): Refuse {
  return async ({ root }) => {
    const table = await readTable();
    const through = table.holding(root);
    if (through !== undefined && through !== table.holding('/') && !through.root.includes(ofPod)) return;
    throw new StowageError(`the store's directory ${root} is not on the node, but in the container of its agent`, {
      code: 'invalid',
      reason: 'store-not-on-node',
      action: `Have agents see that folder of their nodes: add ${root} to the value agent.hostPaths of the chart, or give the store by its value stores. Below /var/lib/stowage neither is needed.`,
    });
  };
}
