import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import type { Core } from '#core/core.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import { stowageError } from '#core/errors.ts';
import { ownLabel } from '#core/labels.ts';
import type { Labels, SeenUse, StoreName, Volume, VolumeId } from '#core/model.ts';
import { isShared } from '#core/placement.ts';
import { nodes } from '#wire/kube/resources.ts';
import type { Node } from '#wire/kube/types.ts';
import type { Agents } from './agents.ts';
import { type ControllerParts, ignoreNotFound } from './controller-parts.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { type Again, again, type Done, done } from './machinery/outcome.ts';
import { nodeReference, outOfService } from './names.ts';
import { createNodeHosts, isHost, type NodeHost } from './node-hosts.ts';

export interface NodeLossOptions extends Omit<ControllerParts, 'provisioners'> {
  readonly core: Core;
  readonly agents: Agents;
  /** The namespace of the ConfigMap that records which machines are nodes. */
  readonly namespace: string;
}

const maxConcurrent = 8;
/** The key of a check of all recorded nodes. No node has this name. */
const everyNode = '';
const intervalMs = 900_000;
const pageSize = 500;
/** The label of ephemeral volumes (core/ephemeral.ts). */
const ephemeralLabel = ownLabel('ephemeral');
const inUseRetryMs = 60_000;

const isLost = (node: Node | undefined): boolean =>
  node === undefined || (node.spec?.taints ?? []).some(({ key }) => key === outOfService);

type UseFilter = (use: SeenUse) => boolean;

/** A node that is gone according to the last read. */
interface LostNode {
  readonly name: string;
  /** Whether a use record belongs to the node. */
  readonly isOwnUse: UseFilter;
  /** Checked again before each use record is broken: working through all of them takes a while, and the node may be back meanwhile. */
  isStillLost(): Promise<boolean>;
}

/**
 * Breaks the use records of nodes that are gone for good, so that other nodes can use their volumes. A node is gone if its Node object is
 * deleted or has the out-of-service taint. A node that is only unreachable keeps its records. Nothing else breaks them.
 */
export function createNodeLoss(options: NodeLossOptions): Controller {
  const { client, clock, caches, events, core, agents } = options;
  const hosts = createNodeHosts(client, options.namespace);
  /** By node name: the uid of the Node object whose machine is recorded. */
  const recordedNodes = new Map<string, string>();

  async function reconcile(name: string, scope: Scope): Promise<Done | Again> {
    if (name === everyNode) return await findDeletedNodes(scope);
    const cached = caches.nodes.get(name);
    if (cached !== undefined && !isLost(cached)) return await recordHost(name, cached, scope);
    // A key is the name of a node that existed, so a node that is not found was deleted.
    const node = await ignoreNotFound(client.get(nodes, { name }, scope.signal));
    if (!isLost(node)) return done;
    const its = (await hosts.read(scope.signal)).filter((one) => one.node === name);
    const isStillLost = async (): Promise<boolean> =>
      isLost(await ignoreNotFound(client.get(nodes, { name }, scope.signal)));
    const lost: LostNode = { name, isOwnUse: its.length === 0 ? usesOfNodeName(name) : usesOfHosts(its), isStillLost };
    if (!(await release(lost, scope)) || node !== undefined || its.length === 0) return done;
    if (!(await deleteEphemeralVolumes(lost, its, scope))) return again(inUseRetryMs);
    // A new node may have the name by now, and its record must stay.
    if (await isStillLost()) await hosts.forget(hostsOf(its), scope.signal);
    return done;
  }

  /**
   * Deletes the ephemeral volumes of the node's pods, which no other process would delete. Returns false if the machine is still alive and
   * uses one, although Kubernetes says that the node is gone. The state of its pods is unknown, so the volume stays until the machine is
   * silent.
   */
  async function deleteEphemeralVolumes(
    { name, isOwnUse, isStillLost }: LostNode,
    its: readonly NodeHost[],
    scope: Scope,
  ): Promise<boolean> {
    const gone = new Set(hostsOf(its));
    let isOver = true;
    await eachByStore(volumesWith(core, { [ephemeralLabel]: 'true' }), async ({ id, instance }) => {
      if (!gone.has(instance)) return;
      const volume = await resolved(id, scope);
      if (volume === undefined) return;
      const uses = (await core.uses.of(volume, scope)) ?? [];
      // The use record says that the machine is another node, so the agent's word does not count.
      if (uses.some((use) => gone.has(use.host) && !isOwnUse(use))) return;
      if (uses.some((use) => !use.stale || !gone.has(use.host)) || !(await isStillLost())) {
        isOver = false;
        return;
      }
      for (const { host } of uses) await breakUse(volume, host, name, scope);
      scope.log.info('deleting an ephemeral volume of a node that is gone', { volume: id, node: name });
      await core.deletions.delete(id, undefined, { ...scope, requestId: `node-loss:${id}` });
    });
    return isOver;
  }

  /** Finds nodes that were deleted while there was no leader: the watch does not report them. */
  async function findDeletedNodes({ signal }: Scope): Promise<Again> {
    for (const { node } of await hosts.read(signal)) if (caches.nodes.get(node) === undefined) controller.add(node);
    return again(intervalMs);
  }

  /** Records the machine of a node. An agent is trusted only about its own node. */
  async function recordHost(name: string, { metadata: { uid = '' } }: Node, scope: Scope): Promise<Done> {
    if (recordedNodes.get(name) === uid || !agents.nodes().includes(name)) return done;
    const { instance: host } = (await agents.call(name, { method: 'GET', path: '/v1/status' }, scope)) as {
      readonly instance?: unknown;
    };
    if (!isHost(host)) return done;
    const all = await hosts.read(scope.signal);
    const other = all.find((one) => one.host === host && one.node !== name);
    if (other !== undefined && caches.nodes.get(other.node) !== undefined) {
      scope.log.warn('two nodes report the same machine', { node: name, other: other.node, host });
      return done;
    }
    // The node of this name was deleted, and another machine has the name now.
    const before = all.filter((one) => one.node === name && one.host !== host && one.uid !== uid);
    if (before.length > 0) {
      // A deleted Node object never gets its uid back, so the node stays lost.
      await release({ name, isOwnUse: usesOfHosts(before), isStillLost: async () => true }, scope);
      await hosts.forget(hostsOf(before), scope.signal);
    }
    const isNoted = all.some((one) => one.host === host && one.node === name && one.uid === uid);
    if (!isNoted) await hosts.record({ host, node: name, uid }, scope.signal);
    recordedNodes.set(name, uid);
    return done;
  }

  /** The volumes of this cluster: those with a PersistentVolume, and those that had one. */
  function clusterVolumes(): Iterable<Pick<Volume, 'id' | 'store'>> {
    const own = new Map<string, Pick<Volume, 'id' | 'store'>>();
    for (const { spec } of caches.volumes.all()) {
      if (spec.csi?.driver !== fileDriver.name) continue;
      const handle = spec.csi.volumeHandle;
      const { id = handle as VolumeId, store = '' as StoreName } = core.catalogue.recorded(handle) ?? {};
      own.set(id, { id, store });
    }
    for (const volume of volumesWith(core, { [claimLabels.cluster]: core.instance })) own.set(volume.id, volume);
    return own.values();
  }

  /** Returns false if the node is back; it keeps its remaining use records. */
  async function release({ name, isOwnUse, isStillLost }: LostNode, scope: Scope): Promise<boolean> {
    let released = 0;
    let isBack = false;
    try {
      await eachByStore(clusterVolumes(), async ({ id }) => {
        const volume = isBack ? undefined : await resolved(id, scope);
        const uses = volume === undefined ? [] : ((await core.uses.of(volume, scope)) ?? []).filter(isOwnUse);
        for (const { host } of uses) {
          if (!(await isStillLost())) isBack = true;
          if (isBack) return;
          await breakUse({ id }, host, name, scope);
          released++;
        }
      });
    } finally {
      if (released > 0) report(name, released, scope);
    }
    return !isBack;
  }

  function report(name: string, released: number, { log }: Scope): void {
    log.warn('a node is gone: released its volumes', { node: name, volumes: released });
    const note = `The node is gone: ${released} volumes that it used are free for other nodes.`;
    const about = { type: 'Normal', reason: 'VolumesReleased', action: 'Release', note } as const;
    events.report({ ...about, regarding: nodeReference(name) });
  }

  /** Undefined if the store has answered that the volume does not exist. */
  async function resolved(id: VolumeId, scope: Scope): Promise<Volume | undefined> {
    try {
      return await core.catalogue.resolve(id, scope);
    } catch (thrown) {
      if (stowageError(thrown).code === 'not-found') return undefined;
      throw thrown;
    }
  }

  async function breakUse({ id }: Pick<Volume, 'id'>, host: string, node: string, scope: Scope): Promise<void> {
    scope.log.info('breaking a record of use', { volume: id, host, node });
    try {
      await core.uses.release(id, host, { ...scope, requestId: `node-loss:${id}:${host}` });
    } catch (thrown) {
      if (stowageError(thrown).code !== 'not-found') throw thrown;
    }
  }

  const controller = createController({ name: 'node-loss', clock, reconcile, workers: 2, maxRetryMs: 60_000 });
  controller.follow(caches.nodes);
  controller.follow(caches.volumes, () => []);
  controller.add(everyNode);
  // The node may be another machine since.
  agents.follow((name) => {
    recordedNodes.delete(name);
    controller.add(name);
  });
  return controller;
}

/** With a concurrency limit for each store: a store that does not answer delays only its own volumes. */
async function eachByStore<T extends Pick<Volume, 'store'>>(
  volumes: Iterable<T>,
  work: (volume: T) => Promise<void>,
): Promise<void> {
  const groups = Map.groupBy(volumes, ({ store }) => store).values();
  const settled = await Promise.allSettled(Array.from(groups, (those) => eachBounded(those, maxConcurrent, work)));
  for (const one of settled) if (one.status === 'rejected') throw one.reason;
}

/** The recorded volumes on shared stores. */
function* volumesWith({ stores, catalogue }: Core, labels: Labels): Generator<Volume, void, undefined> {
  const shared = stores.list().flatMap(({ placement, config }) => (isShared(placement) ? config.name : []));
  const query = { stores: shared, labels, contains: undefined, limit: pageSize };
  for (let after: { readonly store: string; readonly name: string } | undefined; ; ) {
    const page = catalogue.recordedPage({ ...query, after });
    yield* page;
    const last = page.at(-1);
    if (last === undefined || page.length < pageSize) return;
    after = { store: last.store, name: last.name };
  }
}

const hostsOf = (all: readonly NodeHost[]): readonly string[] => all.map(({ host }) => host);

/**
 * The node's agent says which machine it is; the use record that the machine itself wrote must name the same node. Otherwise a node could
 * have the records of any machine broken. A machine that became the writer and died before it wrote its node has its host name there.
 */
function usesOfHosts(all: readonly NodeHost[]): UseFilter {
  const known = new Map(all.map((one) => [one.host, one.node]));
  return ({ host, node }) => known.has(host) && (node === known.get(host) || node === host);
}

/** For nodes whose agent never connected. A machine outside the cluster may have the same name, but its volumes are not used by pods. */
const usesOfNodeName =
  (name: string): UseFilter =>
  ({ node, users }) =>
    node === name && users.every(({ kind }) => kind === 'pod' || kind === 'kubelet');
