import { type MountTable, readMountTable } from '#clients/mounter/mountinfo.ts';
import { StowageError } from '#core/errors.ts';
import type { CheckStore } from './store-overlaps.ts';

/** Part of the path of every volume that a kubelet creates for a pod, such as an emptyDir. */
const podVolumesPath = '/volumes/kubernetes.io~';

/**
 * For an agent in a pod: accepts only directories that are mounted from the node. Everything else, the container's own root and the volumes
 * of the pod, is deleted with the pod, and the stores' volumes with it. The type of the file system is no indication: a node's root can be an
 * overlay, too. Also refuses a directory that does not exist: creating it on the node would not help.
 */
export function refuseContainerDirectory(readTable: () => Promise<MountTable> = readMountTable): CheckStore {
  return async ({ root }) => {
    const table = await readTable();
    const mountPoint = table.mountContaining(root);
    if (
      mountPoint !== undefined &&
      mountPoint !== table.mountContaining('/') &&
      !mountPoint.root.includes(podVolumesPath)
    )
      return;
    throw new StowageError(`the store's directory ${root} is not on the node, but in the container of its agent`, {
      code: 'invalid',
      reason: 'store-not-on-node',
      action: `Mount the nodes' folder into the agents: add ${root} to the chart value agent.hostPaths, or define the store in the chart value stores. Folders below /var/lib/stowage are already mounted.`,
    });
  };
}
