import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import { stowageError } from '#core/errors.ts';
import { handlesOf } from '#core/volume-handles.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type AgentVolume, unexpectedAnswer, volumesFrom } from './agent-answers.ts';
import { createAgentVolumes } from './agent-volumes.ts';
import type { Agents } from './agents.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { isDiscardRefused } from './discard.ts';
import { persistentVolumesOf } from './handles.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { nodeReference, volumeNameFor } from './names.ts';
import { retainedLabel } from './provisioner.ts';
import { storeReference } from './store-object.ts';

export interface NodeVolumesOptions extends Omit<ControllerContext, 'provisioners'> {
  readonly agents: Agents;
  /** The cluster's instance, with which its volumes are labelled. */
  readonly cluster: string;
}

/** Finds volumes on nodes that were created for a claim and have no PersistentVolume, because the leader or the node changed. */
export interface NodeVolumes extends Controller {
  /** The nodes that have such a volume for the claim. */
  nodesWithVolumeFor(uid: string): readonly string[];
  /** Whether all volumes of the node have been listed. */
  isSearched(node: string): boolean;
}

/** Long enough for a controller to write the PersistentVolume. */
const minAgeMs = 600_000;
const searchIntervalMs = 900_000;
const pageSize = 500;
/** A bound on the volumes of one node. */
const maxVolumesOnNode = 50_000;
/** The limit of one search, since each suspect costs requests to the API server. */
const maxSuspectsPerSearch = 1_000;
const maxShownVolumes = 5;

/**
 * Searches each node when its agent connects, and periodically. Deletes a volume whose claim is gone, or has another volume, if the volume
 * is certainly empty, as it is if it never had a PersistentVolume. Reports other such volumes, which stay.
 */
export function createNodeVolumes(options: NodeVolumesOptions): NodeVolumes {
  const { client, clock, caches, events, agents, cluster } = options;
  const agentVolumes = createAgentVolumes(agents, cluster);
  /** By node: the UIDs of the claims of such volumes. Absent if the node has not been searched yet. */
  const unboundClaims = new Map<string, ReadonlySet<string>>();

  async function reconcile(node: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    if (!agents.nodes().includes(node)) {
      unboundClaims.delete(node);
      return done;
    }
    const [suspects, uids] = [new Map<string, AgentVolume>(), new Set<string>()];
    for await (const volume of volumesOn(node, scope)) {
      const uid = volume.labels[claimLabels.uid];
      if (uid === undefined || persistentVolumesOf(caches, volume).length > 0) continue;
      uids.add(uid);
      if (suspects.size < maxSuspectsPerSearch && isSuspect(volume, uid)) suspects.set(volume.id, volume);
    }
    unboundClaims.set(node, uids);
    await dropReferenced(suspects, scope);
    const kept: AgentVolume[] = [];
    for (const volume of suspects.values()) if (!(await deleteIfEmpty(node, volume, scope))) kept.push(volume);
    report(node, kept);
    return requeueAfter(searchIntervalMs);
  }

  async function* volumesOn(node: string, scope: Scope): AsyncGenerator<AgentVolume, void, undefined> {
    const label = encodeURIComponent(`${claimLabels.cluster}=${cluster}`);
    for (let after = '', seen = 0; ; ) {
      const path = `/v1/volumes?limit=${pageSize}&label=${label}${after}`;
      const { volumes, next, unanswered } = volumesFrom(await agents.call(node, { method: 'GET', path }, scope));
      seen += volumes.length;
      if (volumes.length > pageSize || seen > maxVolumesOnNode || (volumes.length === 0 && next !== undefined))
        throw unexpectedAnswer();
      // Never delete volumes of a store that did not answer; but do report that they may exist.
      for (const volume of volumes)
        yield unanswered.includes(volume.store) ? { ...volume, ...createdInFuture } : volume;
      if (next === undefined) return;
      after = `&after=${encodeURIComponent(next)}`;
    }
  }

  function isSuspect({ labels, createdAt }: AgentVolume, uid: string): boolean {
    if (labels[retainedLabel] !== undefined || createdAt > clock.now()) return false;
    // The claim has a PersistentVolume for another volume, so this one will never get one.
    if (caches.volumes.byIndex('claim', uid).length > 0) return true;
    return clock.now() - createdAt >= minAgeMs && !caches.claims.byIndex('uid', uid).some(isUnbound);
  }

  /** Asks the API server, since the caches may be behind. */
  async function dropReferenced(suspects: Map<string, AgentVolume>, { signal }: Scope): Promise<void> {
    for (const suspect of Array.from(suspects.values())) {
      const { id, labels } = suspect;
      const uid = labels[claimLabels.uid] ?? '';
      const [namespace, name] = [labels[claimLabels.namespace] ?? '', labels[claimLabels.name] ?? ''];
      const volume = await ignoreNotFound(client.get(persistentVolumes, { name: volumeNameFor(uid) }, signal));
      if (volume !== undefined && !handlesOf(suspect).includes(volume.spec.csi?.volumeHandle ?? '')) continue;
      const claim = await ignoreNotFound(client.get(claims, { namespace, name }, signal));
      const mayStillBind = claim?.metadata.uid === uid && isUnbound(claim);
      if (volume !== undefined || mayStillBind) suspects.delete(id);
    }
    if (suspects.size === 0) return;
    // Search by every handle: a user may have written a PersistentVolume by hand.
    const byHandle = new Map([...suspects.values()].flatMap((one) => handlesOf(one).map((handle) => [handle, one.id])));
    for await (const { items } of client.list(persistentVolumes, {}, signal))
      for (const { spec } of items) suspects.delete(byHandle.get(spec.csi?.volumeHandle ?? '') ?? '');
  }

  /**
   * Deletes the volume only if it is certainly empty. If the content cannot be counted, only a volume that was never published counts as
   * empty.
   */
  async function deleteIfEmpty(node: string, { id, name, store }: AgentVolume, scope: Scope): Promise<boolean> {
    try {
      await agentVolumes.discard(node, id, scope);
      scope.log.info('deleted an empty orphan volume', { node, volume: `${store}/${name}` });
      return true;
    } catch (thrown) {
      const failure = stowageError(thrown);
      if (failure.reason === 'volume-unknown') return true;
      if (isDiscardRefused(failure)) return false;
      throw thrown;
    }
  }

  function report(node: string, kept: readonly AgentVolume[]): void {
    for (const [store, volumes] of Map.groupBy(kept, (volume) => volume.store as string)) {
      const object = caches.stores.get(store);
      if (object === undefined) continue;
      const names = volumes.slice(0, maxShownVolumes).map(({ name }) => name);
      const more = volumes.length > maxShownVolumes ? `, and ${volumes.length - maxShownVolumes} more` : '';
      const note = `On node ${node}, ${volumes.length} volumes belong to no claim and no PersistentVolume of this cluster, and contain or may contain data: ${names.join(', ')}${more}. Create PersistentVolumes for them, or delete them there: stowage volume delete.`;
      const event = { type: 'Warning', reason: 'OrphanedVolumes', action: 'Look', note } as const;
      // `related` makes one Event for each node.
      events.report({ ...event, regarding: storeReference(object), related: nodeReference(node) });
    }
  }

  const controller = createController({
    name: 'node-volumes',
    clock,
    reconcile,
    workers: 8,
    maxRetryMs: 60_000,
    groupOf: (node) => node,
  });
  agents.follow((node) => controller.add(node));
  for (const node of agents.nodes()) controller.add(node);
  controller.follow(caches.claims, () => []);
  controller.follow(caches.stores, () => []);
  controller.follow(caches.volumes, () => []);
  return {
    ...controller,
    nodesWithVolumeFor: (uid) => [...unboundClaims].flatMap(([node, uids]) => (uids.has(uid) ? node : [])),
    isSearched: (node) => unboundClaims.has(node),
  };
}

/** The claim has no volume yet, also none of another driver. */
const isUnbound = ({ spec }: PersistentVolumeClaim): boolean => (spec.volumeName ?? '') === '';

/** For a volume of a store that did not answer: a creation time in the future protects it from deletion. */
const createdInFuture = { createdAt: Number.POSITIVE_INFINITY } as const;
