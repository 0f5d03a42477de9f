import type { ClusterNodes } from '#front/rest/cluster-nodes.ts';
import type { NodeApis } from './node-apis.ts';
import { listOfNodes, mountedOnNodes } from './node-lists.ts';
import { retryOnNode } from './node-proxy.ts';
import { storesOfNodes } from './node-stores.ts';
import { volumesOfCluster } from './node-volumes.ts';
import { checkFromPod } from './pod-check.ts';

/** Implements the port with the agents' REST APIs: finds the nodes of a request, asks them, and merges their answers. */
export const createClusterNodes = (apis: NodeApis): ClusterNodes => ({
  list: (path, after, scope) => listOfNodes(apis, path, after, scope),
  volumes: (wanted, shared, scope) => volumesOfCluster(apis, wanted, shared, scope),
  stores: (scope) => storesOfNodes(apis, scope),
  mountsOf: (volume, scope) => mountedOnNodes(apis, volume, scope),
  retryOnNode: (failure, request, call) => retryOnNode(apis, failure, request, call),
  checkStore: (store, pod, call) => checkFromPod(apis, store, pod, call),
});
