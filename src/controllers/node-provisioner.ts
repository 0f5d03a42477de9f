import { isDeepStrictEqual } from 'node:util';
import type { Scope } from '#base/log.ts';
import { localDriver } from '#core/csi-drivers.ts';
import { errorCodes } from '#core/error-codes.ts';
import { stowageError } from '#core/errors.ts';
import { nodeTopologyKey } from '#core/node-topology.ts';
import { isOnNode, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import { isHandle } from '#core/volume-handles.ts';
import type { Node, NodeSelector, PersistentVolume } from '#wire/kube/types.ts';
import { type ListedStore, storeFrom } from './agent-answers.ts';
import { createAgentVolumes } from './agent-volumes.ts';
import type { Agents } from './agents.ts';
import type { ControllerContext } from './controller-context.ts';
import { ignoreDiscardRefused } from './discard.ts';
import { handleAndStoreOf, handleOf } from './handles.ts';
import { type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { chooseRetryMs, createNodeChooser } from './node-chooser.ts';
import { nodeUnknown } from './node-errors.ts';
import { mayRetrySucceed, type NodeStores } from './node-stores.ts';
import type { NodeVolumes } from './node-volumes.ts';
import {
  createWhyNotOpen,
  type ProvisionedVolume,
  type Provisioner,
  refuseMovedStore,
  retainedLabel,
  storeRemoved,
  unknownStore,
  type VolumeRequest,
} from './provisioner.ts';
import { refusalOf } from './store-object.ts';
import { createVolumeNodes } from './volume-nodes.ts';

export interface NodeProvisionerOptions extends Omit<ControllerContext, 'provisioners' | 'events'> {
  readonly agents: Agents;
  readonly stores: NodeStores;
  readonly volumes: NodeVolumes;
  readonly kinds: ReadonlyMap<string, StoreKind>;
  /** The cluster's instance. */
  readonly cluster: string;
}

/** Reasons for which a node cannot create the volume, while another node may. */
const reasonsForAnotherNode = new Set([
  'store-root-missing',
  'store-root-changed',
  'store-identity',
  'store-permission',
  'store-io-error',
  'store-damaged',
  'store-file-system-read-only',
  'store-not-on-node',
  'node-unknown',
]);

/**
 * The provisioner for stores that belong to nodes. Their agents create the volumes, with the claim's UID as the request id, so that each
 * agent creates at most one volume for a claim. Two nodes may each create one if the node changes while the result of the first request
 * is unknown. Only one of them becomes the PersistentVolume, whose name is derived from the UID; `node-volumes.ts` deletes the other, now
 * or when its agent is back. Waiting for that agent instead would let one machine that is off block its claims.
 */
export function createNodeProvisioner(options: NodeProvisionerOptions): Provisioner {
  const { client, caches, agents, stores, volumes, cluster, kinds } = options;
  const whyNotOpen = createWhyNotOpen(caches.stores, kinds);
  /** By claim: the nodes that may have created its volume, in the order of the requests. */
  const askedNodes = new Map<string, readonly string[]>();
  const chooser = createNodeChooser({ ...options, askedNodes });
  const agentVolumes = createAgentVolumes(agents, cluster);
  const volumeNodes = createVolumeNodes(client, caches, agents);

  function forget(uid: string): void {
    askedNodes.delete(uid);
    chooser.forget(uid);
  }

  caches.volumes.on({
    added: (volume) => {
      const uid = volume.spec.claimRef?.uid ?? '';
      const [nodeOfVolume] = volumeNodes.namesOf(volume);
      // Volumes that other nodes created for the claim are orphans now.
      for (const node of askedNodes.get(uid) ?? []) if (node !== nodeOfVolume) volumes.add(node);
      forget(uid);
    },
  });

  async function createOnNode(
    node: string,
    store: string,
    request: VolumeRequest,
    scope: Scope,
  ): Promise<ProvisionedVolume> {
    const { uid } = request.claim;
    const topology = await volumeNodes.topologyOf(node, scope);
    if (topology === undefined) throw nodeUnknown(node);
    const askedBefore = askedNodes.get(uid) ?? [];
    askedNodes.set(uid, [...askedBefore.filter((one) => one !== node), node]);
    const isConnected = agents.nodes().includes(node);
    // Count the size before the volume exists: otherwise many concurrent requests would all choose the same node.
    stores.addPending(node, store, request.bytes);
    const creating = agentVolumes.create(node, store, request, scope).catch((thrown: unknown) => {
      stores.addPending(node, store, -request.bytes);
      // An earlier request to the node may have created a volume, which the cleanup finds.
      if (!isConnected || createdNothing(thrown)) askedNodes.set(uid, askedBefore);
      // The reported capacity, which the scheduler uses, is wrong, so check the node's stores again.
      if (canTryAnotherNode(thrown)) stores.add(node);
      throw thrown;
    });
    const { volume, identity: createdIn } = await creating;
    // Ask again instead of using the last report: the store may be at another location since.
    const identity = createdIn ?? (await getNodeStore(agents, node, volume.store, scope)).identity;
    return { volume, nodeSelector: nodeSelectorFor(topology), identity };
  }

  async function create(request: VolumeRequest, scope: Scope): Promise<ProvisionedVolume | RequeueAfter> {
    const store = localStoreFor(request.store, options);
    const object = caches.stores.get(store);
    const refusal = object && refusalOf(object, kinds);
    if (refusal !== undefined) throw refusal;
    if (request.node !== undefined) return await createOnNode(request.node, store, request, scope);
    for (const tried = new Set<string>(); ; ) {
      scope.signal.throwIfAborted();
      const node = chooser.choose(request, store);
      if (typeof node !== 'string') return node;
      // Ask each node only once per attempt.
      if (tried.has(node)) return requeueAfter(chooseRetryMs);
      tried.add(node);
      try {
        return await createOnNode(node, store, request, scope);
      } catch (thrown) {
        if (!canTryAnotherNode(thrown)) throw thrown;
        scope.log.info('choosing another node', { node, why: stowageError(thrown).message });
        chooser.recordRefusal(request.claim.uid, node);
      }
    }
  }

  /** If the node does not have the store open, all its volumes would look deleted. */
  async function refuseUnlessOpen(node: string, volume: PersistentVolume, store: string, scope: Scope): Promise<void> {
    try {
      const { isOpen, identity } = await getNodeStore(agents, node, store, scope);
      if (isOpen) return refuseMovedStore(volume, store, identity);
    } catch (thrown) {
      if (stowageError(thrown).reason !== 'store-unknown') throw thrown;
    }
    throw whyNotOpen(store) ?? storeRemoved(store);
  }

  return {
    driver: localDriver.name,
    create,
    canTryAnotherNode,
    follow: (changed) => followRetries(options, chooser.unmetSizes, changed),
    deleteAbandoned: async (uid, hasPersistentVolume, scope) => {
      for (const node of new Set([...(askedNodes.get(uid) ?? []), ...volumes.nodesWithVolumeFor(uid)])) {
        // `node-volumes.ts` searches an absent node when it is back.
        if (!agents.nodes().includes(node)) continue;
        const volume = await agentVolumes.findFor(node, uid, scope);
        if (volume === undefined || volume.labels[retainedLabel] !== undefined) continue;
        if (await hasPersistentVolume(volume, scope.signal)) continue;
        // `node-volumes.ts` retries and reports volumes that cannot be deleted.
        await ignoreDiscardRefused(agentVolumes.discard(node, volume.id, scope));
      }
      forget(uid);
    },
    delete: async (volume, scope) => {
      const [node, { handle, store }] = [volumeNodes.nodeOf(volume), handleAndStoreOf(volume)];
      const { uid } = volume.metadata;
      const outcome = isHandle(handle) ? await agentVolumes.delete(node, handle, uid, scope) : 'unknown';
      if (outcome === 'unknown' && store !== undefined) await refuseUnlessOpen(node, volume, store, scope);
    },
    retain: async (volume, scope) => await agentVolumes.retain(volumeNodes.nodeOf(volume), handleOf(volume), scope),
    // The agent expands the volume, mounted or not, so kubelets have nothing to do.
    expand: async (volume, bytes, scope) => ({
      bytes: await agentVolumes.expand(volumeNodes.nodeOf(volume), handleOf(volume), bytes, scope),
      nodeExpansionRequired: false,
    }),
  };
}

/** The agent refused the request before it created a volume. */
function createdNothing(thrown: unknown): boolean {
  const { code, reason } = stowageError(thrown);
  return (!errorCodes[code].retry && code !== 'internal') || reasonsForAnotherNode.has(reason);
}

async function getNodeStore(agents: Agents, node: string, store: string, scope: Scope): Promise<ListedStore> {
  const path = `/v1/stores/${encodeURIComponent(store)}`;
  return storeFrom(await agents.call(node, { method: 'GET', path }, scope));
}

/** The store that a class names, otherwise the only store on nodes. */
function localStoreFor(
  wanted: string | undefined,
  { caches, kinds }: Pick<NodeProvisionerOptions, 'caches' | 'kinds'>,
): string {
  const all = [...caches.stores.all()].filter(({ spec }) => isOnNode(placementOf(kinds, spec.uri)));
  const names = all.map(({ metadata: { name = '' } }) => name);
  const [only] = names;
  if (wanted === undefined && only !== undefined && names.length === 1) return only;
  if (wanted !== undefined && names.includes(wanted)) return wanted;
  throw unknownStore(wanted, names);
}

/** Calls back when a failed request may succeed now. `unmetSizes`: the sizes for which no node had enough space. */
function followRetries(
  { stores, agents, caches }: Pick<NodeProvisionerOptions, 'stores' | 'agents' | 'caches'>,
  unmetSizes: () => readonly bigint[],
  changed: () => void,
): void {
  stores.onChange((node, before) => {
    if (mayRetrySucceed(stores.reportOf(node), before, unmetSizes())) changed();
  });
  agents.follow(changed);
  caches.nodes.on({
    // Not for the first list: no request has failed yet.
    added: () => caches.nodes.synced && changed(),
    changed: (now, before) => {
      if (!hasSamePlacement(now, before)) changed();
    },
  });
}

/** Whether the fields are equal that decide which volumes the node may have. */
const hasSamePlacement = (one: Node, other: Node): boolean =>
  isDeepStrictEqual([one.metadata.labels, one.spec], [other.metadata.labels, other.spec]);

/** Whether the node did not create the volume, and another node may. */
function canTryAnotherNode(error: unknown): boolean {
  const { code, reason } = stowageError(error);
  return code === 'exhausted' || reasonsForAnotherNode.has(reason);
}

const nodeSelectorFor = (topology: string): NodeSelector => ({
  nodeSelectorTerms: [{ matchExpressions: [{ key: nodeTopologyKey, operator: 'In', values: [topology] }] }],
});
