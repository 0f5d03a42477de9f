import { StowageError } from '#core/errors.ts';

/** Shows the agent of each node. Part of errors that users read on claims and PersistentVolumes. */
const listAgentsCommand = 'kubectl get pods --namespace stowage-system --output wide';

export const nodeUnknown = (node: string): StowageError =>
  new StowageError(`node '${node}', which was chosen for the volume, is no longer in the cluster`, {
    code: 'conflict',
    reason: 'node-unknown',
    action: 'Wait: the scheduler chooses another node.',
  });

export const notRegistered = (node: string, driver: string): StowageError =>
  new StowageError(`the kubelet of node '${node}' does not know ${driver} yet`, {
    code: 'unavailable',
    reason: 'node-not-registered',
    action: `Wait a moment. If the problem persists, check the agent of that node: ${listAgentsCommand}`,
  });

export const noAgents = (store: string): StowageError =>
  new StowageError(`no node that the class allows has store '${store}' open`, {
    code: 'unavailable',
    reason: 'store-on-no-node',
    action: `Ask the administrator to check the store: kubectl describe store ${store}; and the agents: ${listAgentsCommand}`,
  });

export const notEnoughSpace = (store: string, nodes: number): StowageError =>
  new StowageError(`store '${store}' does not have enough free space on any of ${nodes} nodes`, {
    code: 'exhausted',
    reason: 'store-full-everywhere',
    action: 'Request less, delete volumes that are not needed, or ask the administrator for more space.',
  });

export const nodeOfVolumeUnknown = (handle: string): StowageError =>
  new StowageError(`the node of volume '${handle}' is unknown: its PersistentVolume has no node affinity`, {
    code: 'conflict',
    reason: 'volume-node-unknown',
    action:
      'Set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume; then delete the volume on its node: stowage volume delete.',
  });

export const nodeOfVolumeGone = (handle: string, node: string): StowageError =>
  new StowageError(`volume '${handle}' is on node '${node}', which is no longer in the cluster`, {
    code: 'conflict',
    reason: 'volume-node-gone',
    action:
      'Stowage deletes the volume when the node comes back. If the node is gone for good, wipe its disks if they still exist, set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume.',
  });
