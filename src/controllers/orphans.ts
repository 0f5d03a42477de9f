import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import type { Core } from '#core/core.ts';
import { stowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { isOnNode, placementOf } from '#core/placement.ts';
import type { StoreKind } from '#core/ports.ts';
import { handlesOf } from '#core/volume-handles.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { ControllerContext } from './controller-context.ts';
import { isDiscardRefused } from './discard.ts';
import { persistentVolumesOf } from './handles.ts';
import { type Controller, createController } from './machinery/controller.ts';
import { done, type ReconcileDone, type RequeueAfter, requeueAfter } from './machinery/outcome.ts';
import { retainedLabel } from './provisioner.ts';
import { storeReference } from './store-object.ts';

export interface OrphansOptions extends Omit<ControllerContext, 'provisioners'> {
  readonly core: Core;
  readonly kinds: ReadonlyMap<string, StoreKind>;
}

/** Long enough for a controller to write the PersistentVolume. */
const minAgeMs = 600_000;
const searchIntervalMs = 900_000;
const openRetryMs = 1_000;
const pageSize = 500;
const maxShownVolumes = 5;

/**
 * Finds volumes that were created for a claim of this cluster and have neither that claim nor a PersistentVolume. If a controller dies
 * before it has written the PersistentVolume, and the claim is then deleted, such a volume is left. It was never mounted, so it is empty,
 * and is deleted. A volume with files once had a PersistentVolume, which a user removed without Stowage, or which a cluster restored from a
 * backup does not know: it is reported and stays.
 */
export function createOrphans({ client, clock, caches, events, core, kinds }: OrphansOptions): Controller {
  async function reconcile(store: string, scope: Scope): Promise<ReconcileDone | RequeueAfter> {
    const object = caches.stores.get(store);
    const view = core.stores.list().find(({ config }) => config.name === store);
    if (object === undefined) return done;
    // `node-volumes.ts` finds orphans on nodes.
    if (isOnNode(placementOf(kinds, object.spec.uri)) || isOnNode(view?.placement)) return done;
    // The stores controller configures the core, and there is no notification when the store is open, so poll.
    if (view?.store === undefined) return requeueAfter(openRetryMs);
    const suspects = new Map<string, Volume>();
    for await (const volume of volumesOf(store, scope)) if (isSuspect(volume)) suspects.set(volume.id, volume);
    await dropReferenced(suspects, scope);
    const kept: Volume[] = [];
    for (const volume of suspects.values()) if (!(await deleteIfEmpty(volume, scope))) kept.push(volume);
    if (kept.length > 0) {
      const names = kept.slice(0, maxShownVolumes).map(({ name }) => name);
      const more = kept.length > maxShownVolumes ? `, and ${kept.length - maxShownVolumes} more` : '';
      const note = `${kept.length} volumes belong to no claim and no PersistentVolume of this cluster, and contain or may contain data: ${names.join(', ')}${more}. Create PersistentVolumes for them, or delete them: stowage volume delete.`;
      const event = { type: 'Warning', reason: 'OrphanedVolumes', action: 'Look', note } as const;
      events.report({ ...event, regarding: storeReference(object) });
    }
    return requeueAfter(searchIntervalMs);
  }

  async function* volumesOf(store: string, scope: Scope): AsyncGenerator<Volume, void, undefined> {
    const labels = { [claimLabels.cluster]: core.instance };
    for (let after: { readonly store: string; readonly name: string } | undefined; ; ) {
      const query = { stores: [store], labels, contains: undefined, after, limit: pageSize };
      const { volumes, unanswered } = await core.catalogue.page(query, scope);
      // Never delete volumes of a store that did not answer.
      if (unanswered.length > 0) return;
      yield* volumes;
      const last = volumes.at(-1);
      if (last === undefined || volumes.length < pageSize) return;
      after = { store: last.store, name: last.name };
    }
  }

  function isSuspect(volume: Volume): boolean {
    const { labels, createdAt } = volume;
    const uid = labels[claimLabels.uid];
    if (uid === undefined || labels[retainedLabel] !== undefined || clock.now() - createdAt < minAgeMs) return false;
    const references = [
      caches.claims.byIndex('uid', uid),
      caches.volumes.byIndex('claim', uid),
      persistentVolumesOf(caches, volume),
    ];
    return references.every((those) => those.length === 0);
  }

  /** Asks the API server, since the caches may be behind. */
  async function dropReferenced(suspects: Map<string, Volume>, { signal }: Scope): Promise<void> {
    if (suspects.size === 0) return;
    const all = [...suspects.values()];
    const byClaim = Map.groupBy(all, ({ labels }) => labels[claimLabels.uid] ?? '');
    const byHandle = new Map(all.flatMap((one) => handlesOf(one).map((handle) => [handle, one.id])));
    const dropOfClaim = (uid = ''): void => {
      for (const { id } of byClaim.get(uid) ?? []) suspects.delete(id);
    };
    for await (const { items } of client.list(claims, {}, signal))
      for (const { metadata } of items) dropOfClaim(metadata.uid);
    for await (const { items } of client.list(persistentVolumes, {}, signal))
      for (const { spec } of items) {
        suspects.delete(byHandle.get(spec.csi?.volumeHandle ?? '') ?? '');
        dropOfClaim(spec.claimRef?.uid);
      }
  }

  /** Deletes the volume only if it is certainly empty. */
  async function deleteIfEmpty({ id, name, store }: Volume, scope: Scope): Promise<boolean> {
    try {
      await core.deletions.delete(id, undefined, { ...scope, requestId: `orphan:${id}` }, { discard: true });
      scope.log.info('deleted an empty orphan volume', { volume: `${store}/${name}` });
      return true;
    } catch (thrown) {
      const failure = stowageError(thrown);
      if (failure.reason === 'volume-unknown') return true;
      if (isDiscardRefused(failure)) return false;
      throw thrown;
    }
  }

  const controller = createController({ name: 'orphans', clock, reconcile, workers: 2, groupOf: (key) => key });
  // Follow only new stores: the status changes all the time.
  caches.stores.on({ added: ({ metadata: { name } }) => controller.add(name ?? '') });
  controller.follow(caches.claims, () => []);
  controller.follow(caches.volumes, () => []);
  return controller;
}
