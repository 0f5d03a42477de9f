import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import type { Core } from '#core/core.ts';
import { fileDriver } from '#core/csi-drivers.ts';
import { stowageError } from '#core/errors.ts';
import { ownLabel } from '#core/labels.ts';
import type { Labels, SeenUse, StoreName, Volume, VolumeId } from '#core/model.ts';
import { isShared } from '#core/placement.ts';
import type { ControllerContext } from './controller-context.ts';
import { nodeReference } from './names.ts';

const maxConcurrentPerStore = 8;
const pageSize = 500;
/** The label of ephemeral volumes (core/ephemeral.ts). */
const ephemeralLabel = ownLabel('ephemeral');

export type UseFilter = (use: SeenUse) => boolean;

/** A node that is gone according to the last read. */
export interface LostNode {
  readonly name: string;
  /** Whether a use record belongs to the node. */
  readonly isOwnUse: UseFilter;
  /** Called before each use record is broken: breaking all of them takes a while, and the node may be back meanwhile. */
  isStillLost(): Promise<boolean>;
}

/** Cleans up the volumes that a lost node used. */
export interface LostNodeVolumes {
  /** Breaks the node's use records. Returns false if the node is back; it keeps its remaining use records. */
  release(node: LostNode, scope: Scope): Promise<boolean>;
  /**
   * Deletes the ephemeral volumes of the node's pods, which no other process would delete. `hosts`: the machines that were the node.
   * Returns false if a machine is still alive and uses a volume, although Kubernetes says that the node is gone. The state of its pods is
   * unknown, so the volume stays until the machine stops renewing its use record.
   */
  deleteEphemeral(node: LostNode, hosts: ReadonlySet<string>, scope: Scope): Promise<boolean>;
}

export function createLostNodeVolumes(
  core: Core,
  caches: Pick<ControllerContext['caches'], 'volumes'>,
  events: ControllerContext['events'],
): LostNodeVolumes {
  async function deleteEphemeral(
    { name, isOwnUse, isStillLost }: LostNode,
    lostHosts: ReadonlySet<string>,
    scope: Scope,
  ): Promise<boolean> {
    let isComplete = true;
    await forEachByStore(recordedVolumes(core, { [ephemeralLabel]: 'true' }), async ({ id, instance }) => {
      if (!lostHosts.has(instance)) return;
      const volume = await resolveVolume(id, scope);
      if (volume === undefined) return;
      const uses = (await core.uses.list(volume, scope)) ?? [];
      // The use record names another node than the agent did, so do not trust the agent.
      if (uses.some((use) => lostHosts.has(use.host) && !isOwnUse(use))) return;
      if (uses.some((use) => !use.stale || !lostHosts.has(use.host)) || !(await isStillLost())) {
        isComplete = false;
        return;
      }
      for (const { host } of uses) await breakUse(volume, host, name, scope);
      scope.log.info('deleting an ephemeral volume of a node that is gone', { volume: id, node: name });
      await core.deletions.delete(id, undefined, { ...scope, requestId: `node-loss:${id}` });
    });
    return isComplete;
  }

  /** The volumes of this cluster that have, or had, a PersistentVolume. */
  function clusterVolumes(): Iterable<Pick<Volume, 'id' | 'store'>> {
    const volumes = new Map<string, Pick<Volume, 'id' | 'store'>>();
    for (const { spec } of caches.volumes.all()) {
      if (spec.csi?.driver !== fileDriver.name) continue;
      const handle = spec.csi.volumeHandle;
      const { id = handle as VolumeId, store = '' as StoreName } = core.catalogue.findRecorded(handle) ?? {};
      volumes.set(id, { id, store });
    }
    for (const volume of recordedVolumes(core, { [claimLabels.cluster]: core.instance }))
      volumes.set(volume.id, volume);
    return volumes.values();
  }

  async function release({ name, isOwnUse, isStillLost }: LostNode, scope: Scope): Promise<boolean> {
    let released = 0;
    let isBack = false;
    try {
      await forEachByStore(clusterVolumes(), async ({ id }) => {
        const volume = isBack ? undefined : await resolveVolume(id, scope);
        const uses = volume === undefined ? [] : ((await core.uses.list(volume, scope)) ?? []).filter(isOwnUse);
        for (const { host } of uses) {
          if (!(await isStillLost())) isBack = true;
          if (isBack) return;
          await breakUse({ id }, host, name, scope);
          released++;
        }
      });
    } finally {
      if (released > 0) reportReleased(name, released, scope);
    }
    return !isBack;
  }

  function reportReleased(name: string, released: number, { log }: Scope): void {
    log.warn('a node is gone: released its volumes', { node: name, volumes: released });
    const note = `The node is gone: ${released} volumes that it used are free for other nodes.`;
    const event = { type: 'Normal', reason: 'VolumesReleased', action: 'Release', note } as const;
    events.report({ ...event, regarding: nodeReference(name) });
  }

  /** Undefined if the store has answered that the volume does not exist. */
  async function resolveVolume(id: VolumeId, scope: Scope): Promise<Volume | undefined> {
    try {
      return await core.catalogue.resolve(id, scope);
    } catch (thrown) {
      if (stowageError(thrown).code === 'not-found') return undefined;
      throw thrown;
    }
  }

  async function breakUse({ id }: Pick<Volume, 'id'>, host: string, node: string, scope: Scope): Promise<void> {
    scope.log.info('breaking a use record', { volume: id, host, node });
    try {
      await core.uses.release(id, host, { ...scope, requestId: `node-loss:${id}:${host}` });
    } catch (thrown) {
      if (stowageError(thrown).code !== 'not-found') throw thrown;
    }
  }

  return { release, deleteEphemeral };
}

/** Runs `work` for each volume, with a concurrency limit for each store: a store that does not answer delays only its own volumes. */
async function forEachByStore<T extends Pick<Volume, 'store'>>(
  volumes: Iterable<T>,
  work: (volume: T) => Promise<void>,
): Promise<void> {
  const groups = Map.groupBy(volumes, ({ store }) => store).values();
  const settled = await Promise.allSettled(
    Array.from(groups, (those) => eachBounded(those, maxConcurrentPerStore, work)),
  );
  for (const result of settled) if (result.status === 'rejected') throw result.reason;
}

/** The recorded volumes on shared stores. */
function* recordedVolumes({ stores, catalogue }: Core, labels: Labels): Generator<Volume, void, undefined> {
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
