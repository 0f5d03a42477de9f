import type { Scope } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import { nodes } from '#wire/kube/resources.ts';
import type { Node } from '#wire/kube/types.ts';
import type { Agents } from './agents.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { createLostNodeVolumes, type LostNode, type UseFilter } from './lost-node-volumes.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { outOfServiceTaint } from './names.ts';
import { createNodeHosts, isHostName, type NodeHost } from './node-hosts.ts';

export interface NodeLossOptions extends Omit<ControllerContext, 'provisioners'> {
  readonly core: Core;
  readonly agents: Agents;
  /** The namespace of the ConfigMap that records which machines are nodes. */
  readonly namespace: string;
}

/** The key of a check of all recorded nodes. No node has this name. */
const everyNode = '';
const checkIntervalMs = 900_000;
const inUseRetryMs = 60_000;

const isLost = (node: Node | undefined): boolean =>
  node === undefined || (node.spec?.taints ?? []).some(({ key }) => key === outOfServiceTaint);

/**
 * Breaks the use records of nodes that are gone for good, so that other nodes can use their volumes. A node is gone if its Node object is
 * deleted or has the out-of-service taint. A node that is only unreachable keeps its use records. No other controller breaks use records.
 */
export function createNodeLoss(options: NodeLossOptions): Controller {
  const { client, clock, caches, events, core, agents } = options;
  const volumes = createLostNodeVolumes(core, caches, events);
  const hosts = createNodeHosts(client, options.namespace);
  /** By node name: the uid of the Node object whose machine is recorded. */
  const recordedNodes = new Map<string, string>();

  async function reconcile(name: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    if (name === everyNode) return await findDeletedNodes(scope);
    const cached = caches.nodes.get(name);
    if (cached !== undefined && !isLost(cached)) return await recordHost(name, cached, scope);
    // A key is the name of a node that existed, so a node that is not found was deleted.
    const node = await ignoreNotFound(client.get(nodes, { name }, scope.signal));
    if (!isLost(node)) return done;
    const recordedHosts = (await hosts.read(scope.signal)).filter((one) => one.node === name);
    const isStillLost = async (): Promise<boolean> =>
      isLost(await ignoreNotFound(client.get(nodes, { name }, scope.signal)));
    const lost: LostNode = {
      name,
      isOwnUse: recordedHosts.length === 0 ? usesOfNodeName(name) : usesOfHosts(recordedHosts),
      isStillLost,
    };
    if (!(await volumes.release(lost, scope)) || node !== undefined || recordedHosts.length === 0) return done;
    if (!(await volumes.deleteEphemeral(lost, new Set(hostsOf(recordedHosts)), scope)))
      return requeueAfter(inUseRetryMs);
    // A new node may have the name by now, and its record must stay.
    if (await isStillLost()) await hosts.forget(hostsOf(recordedHosts), scope.signal);
    return done;
  }

  /** Finds nodes that were deleted while there was no leader: the watch does not report them. */
  async function findDeletedNodes({ signal }: Scope): Promise<RequeueAfter> {
    for (const { node } of await hosts.read(signal)) if (caches.nodes.get(node) === undefined) controller.add(node);
    return requeueAfter(checkIntervalMs);
  }

  /** Records the machine of a node. An agent is trusted only about its own node. */
  async function recordHost(name: string, { metadata: { uid = '' } }: Node, scope: Scope): Promise<ReconcileDone> {
    if (recordedNodes.get(name) === uid || !agents.nodes().includes(name)) return done;
    const { instance: host } = (await agents.call(name, { method: 'GET', path: '/v1/status' }, scope)) as {
      readonly instance?: unknown;
    };
    if (!isHostName(host)) return done;
    const all = await hosts.read(scope.signal);
    const other = all.find((one) => one.host === host && one.node !== name);
    if (other !== undefined && caches.nodes.get(other.node) !== undefined) {
      scope.log.warn('two nodes report the same machine', { node: name, other: other.node, host });
      return done;
    }
    // The node of this name was deleted, and another machine has the name now.
    const previousHosts = all.filter((one) => one.node === name && one.host !== host && one.uid !== uid);
    if (previousHosts.length > 0) {
      // A deleted Node object never gets its uid back, so the node stays lost.
      await volumes.release({ name, isOwnUse: usesOfHosts(previousHosts), isStillLost: async () => true }, scope);
      await hosts.forget(hostsOf(previousHosts), scope.signal);
    }
    const isRecorded = all.some((one) => one.host === host && one.node === name && one.uid === uid);
    if (!isRecorded) await hosts.record({ host, node: name, uid }, scope.signal);
    recordedNodes.set(name, uid);
    return done;
  }

  const controller = createController({ name: 'node-loss', clock, reconcile, workers: 2, maxRetryMs: 60_000 });
  controller.follow(caches.nodes);
  controller.follow(caches.volumes, () => []);
  controller.add(everyNode);
  // After a reconnect, the node may be another machine.
  agents.follow((name) => {
    recordedNodes.delete(name);
    controller.add(name);
  });
  return controller;
}

const hostsOf = (all: readonly NodeHost[]): readonly string[] => all.map(({ host }) => host);

/**
 * The node's agent reports its machine, and the use record that the machine itself wrote must name the same node. Otherwise a compromised
 * node could get the use records of any machine broken. If a machine became the writer and died before it wrote its node, the record has
 * the host name as the node.
 */
function usesOfHosts(all: readonly NodeHost[]): UseFilter {
  const nodeByHost = new Map(all.map((one) => [one.host, one.node]));
  return ({ host, node }) => nodeByHost.has(host) && (node === nodeByHost.get(host) || node === host);
}

/** For nodes whose agent never connected. A machine outside the cluster may have the same name, but its volumes are not used by pods. */
const usesOfNodeName =
  (name: string): UseFilter =>
  ({ node, users }) =>
    node === name && users.every(({ kind }) => kind === 'pod' || kind === 'kubelet');
