import { StowageError } from '#core/errors.ts';

/** What goes wrong with volumes that are on nodes, for who looks at claims and PersistentVolumes. */
const how = 'kubectl get pods --namespace stowage-system --output wide';

export const nodeUnknown = (node: string): StowageError =>
  new StowageError(`node '${node}', which was chosen for the volume, is not in the cluster any more`, {
    code: 'conflict',
    reason: 'node-unknown',
    action: 'Wait: the scheduler chooses another one.',
  });

export const notRegistered = (node: string, driver: string): StowageError =>
  new StowageError(`the kubelet of node '${node}' does not know ${driver} yet`, {
    code: 'unavailable',
    reason: 'node-not-registered',
    action: `Wait a moment. If it persists, look at the agent of that node: ${how}`,
  });

export const noAgents = (store: string): StowageError =>
  new StowageError(`no node that the class allows has store '${store}' open`, {
    code: 'unavailable',
    reason: 'store-on-no-node',
    action: `Ask the administrator to look at it: kubectl describe store ${store}; and at the agents: ${how}`,
  });

export const noRoom = (store: string, nodes: number): StowageError =>
  new StowageError(`store '${store}' has not so much room on any of ${nodes} nodes`, {
    code: 'exhausted',
    reason: 'store-full-everywhere',
    action: 'Ask for less, delete volumes that are not needed, or ask the administrator for more space.',
  });

export const nodeOfVolumeUnknown = (handle: string): StowageError =>
  new StowageError(`it is not known which node has volume '${handle}': its PersistentVolume has no affinity to one`, {
    code: 'conflict',
    reason: 'volume-node-unknown',
    action:
      'Set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume; then delete the volume on its node: stowage volume delete.',
  });

export const nodeOfVolumeGone = (handle: string, node: string): StowageError =>
  new StowageError(`volume '${handle}' is on node '${node}', which is not in the cluster any more`, {
    code: 'conflict',
    reason: 'volume-node-gone',
    action:
      'It is deleted when the node comes back. If it never does, its disks are gone or to be wiped: set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume.',
  });
