import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ContainerReferences, ReferenceReport } from './container-references.ts';
import { type EngineMount, engineKindOf } from './containers.ts';
import type { EngineTargets } from './engine-targets.ts';
import { stowageError } from './errors.ts';
import { createFairPass } from './fair-pass.ts';
import { engineMountKey } from './lock-keys.ts';
import type { VolumeId } from './model.ts';
import type { Operations } from './operations.ts';
import type { Records } from './ports.ts';

/** Finds and drops the engine mounts that no container uses. */
export interface IdleEngineMounts {
  /** Drops stale mounts of all volumes, and of volumes whose containers have not run for a while. Retries failed unmounts. */
  reconcile(scope: Scope): Promise<void>;
  /** Unpublishes the volume and forgets its engine mounts. Call it with the lock held. */
  drop(id: VolumeId, why: string, scope: Scope): Promise<void>;
  /** Neither this process nor the engine restarted since the request, so both have the same count. */
  isCountCertain(hold: EngineMount): boolean;
  /** Call it when an engine requests a mount of the volume. */
  noteRequest(id: VolumeId): void;
  /** Call it when this process has seen all requests of the engine for this mount. */
  noteCounted(hold: Pick<EngineMount, 'volumeId' | 'plugin' | 'id'>): void;
}

export interface IdleEngineMountsParts {
  readonly records: Pick<Records, 'engineMounts' | 'mounts' | 'volumes'>;
  readonly operations: Pick<Operations, 'lock'>;
  readonly references: () => Pick<
    ContainerReferences,
    'query' | 'lastKnown' | 'isLive' | 'refreshAll' | 'lastConnectedAt'
  >;
  readonly clock: Clock;
  readonly log: Log;
  /** Aborted when the engine mounts close. */
  readonly closing: AbortSignal;
}

/** A stopped container may be starting: the engine mounts its volumes first, and lists it as running later. */
const containerStartMs = 60_000;
/**
 * Docker mounts a new volume before it lists the container, to copy the image's files into it, which can take long. Applies only to
 * mounts that neither side can have lost in a crash.
 */
const maxVolumeFillMs = 600_000;

/** The timeout per volume. If the server does not answer, an unmount takes about 20 s. */
const volumeTimeoutMs = 60_000;
const maxConcurrentVolumes = 4;

export function createIdleEngineMounts(parts: IdleEngineMountsParts, targets: EngineTargets): IdleEngineMounts {
  const { records, operations, clock, log, closing } = parts;
  /** When an engine last requested a mount, and since when no running container was seen; by this process's clock. */
  const lastRequestedAt = new Map<VolumeId, number>();
  const idleSince = new Map<VolumeId, number>();
  /** Volumes for which the warning about an unlisted container was logged. */
  const warnedUnlisted = new Set<VolumeId>();
  const fairPass = createFairPass<VolumeId>(clock, {
    maxConcurrent: maxConcurrentVolumes,
    itemTimeoutMs: volumeTimeoutMs,
  });
  /** When each mount was requested. Mounts of an earlier process are not in it. */
  const requestedAt = new Map<string, number>();

  async function drop(id: VolumeId, why: string, scope: Scope): Promise<void> {
    for (const { plugin } of records.engineMounts.byVolume(id))
      log.info('a mount that no container uses is dropped', { volume: id, plugin, why });
    // Keep the record while the volume cannot be unmounted; the next pass retries.
    if (!(await targets.tryUnpublish(id, { ...scope, requestId: `holds:${id}` }))) return;
    records.engineMounts.clear(id);
    idleSince.delete(id);
  }

  /** Neither this process nor the engine restarted since the request, so both have the same count. */
  function isCountCertain(engineMount: EngineMount): boolean {
    const at = requestedAt.get(engineMountIdentity(engineMount));
    return (
      at !== undefined &&
      at >= (parts.references().lastConnectedAt(engineKindOf(engineMount)) ?? Number.POSITIVE_INFINITY)
    );
  }

  async function dropIfUnused(id: VolumeId, scope: Scope): Promise<void> {
    const volume = records.volumes.byId(id);
    // Query the engines before taking the lock: Podman does not answer while it waits for a mount, and the mount waits for the lock.
    const report = await parts.references().query(volume ?? id, scope);
    using _ = await operations.lock([engineMountKey(id)], scope.signal);
    const engineMounts = records.engineMounts.byVolume(id);
    if (targets.pathOf(id) === undefined) return await drop(id, 'it is not mounted', scope);
    if (engineMounts.length === 0) return await dropIfStopped(id, scope);
    // Podman remembers what it has mounted and does not request it again.
    if (engineMounts.some((hold) => engineKindOf(hold) === 'podman')) return;
    if (!enginesAnswered(engineMounts, report) || report.references.some(({ running }) => running)) {
      idleSince.delete(id);
      return;
    }
    // Another host destroyed the volume: Docker does not unmount a volume that it cannot look up, and cannot be copying files into it.
    if (volume === undefined && report.references.length === 0)
      return await drop(id, 'it no longer exists, and no container references it', scope);
    const now = clock.elapsed();
    const since = idleSince.get(id) ?? now;
    idleSince.set(id, since);
    if (report.references.length === 0 && now - since >= containerStartMs) warnUnlisted(id, engineMounts);
    const waitMs = engineMounts.some(isCountCertain) ? maxVolumeFillMs : containerStartMs;
    if (now - Math.max(since, lastRequestedAt.get(id) ?? since) < waitMs) return;
    if (await targets.isBoundElsewhere(id, scope)) return;
    await drop(id, 'none of its containers runs', scope);
  }

  async function reconcileOne(id: VolumeId, scope: Scope): Promise<void> {
    // A shortcut for the usual case, a running container. `dropIfUnused` decides the rest with fresh data and the lock held.
    const runs = parts
      .references()
      .lastKnown(id)
      .some(({ running }) => running);
    if (runs && targets.pathOf(id) !== undefined && records.engineMounts.byVolume(id).length > 0) {
      idleSince.delete(id);
      return;
    }
    try {
      await dropIfUnused(id, scope);
    } catch (thrown) {
      const why = stowageError(thrown).message;
      if (!closing.aborted) log.warn('a mount for containers could not be reconciled', { volume: id, why });
    }
  }

  /** For a volume that the engine released while one of its containers seemed to run. Call it with the lock held. */
  async function dropIfStopped(id: VolumeId, scope: Scope): Promise<void> {
    if (!parts.references().isLive(id)) await drop(id, 'none of its containers runs', scope);
  }

  /** Call it after `containerStartMs`: a container that is being created is listed soon. */
  function warnUnlisted(id: VolumeId, engineMounts: readonly EngineMount[]): void {
    if (warnedUnlisted.has(id)) return;
    warnedUnlisted.add(id);
    const [{ plugin } = { plugin: undefined }] = engineMounts;
    const action =
      'The engine may be copying files of an image into it, or may have forgotten the mount in a crash; Stowage then drops the mount. If a second engine uses Stowage, Stowage does not know its containers: that engine needs a Stowage of its own.';
    log.warn('a volume is mounted for a container that its engine does not list', { volume: id, plugin, action });
  }

  return {
    drop,
    isCountCertain,
    noteRequest: (id) => {
      lastRequestedAt.set(id, clock.elapsed());
      idleSince.delete(id);
    },
    noteCounted: (hold) => void requestedAt.set(engineMountIdentity(hold), clock.elapsed()),
    reconcile: async (scope) => {
      const published = records.mounts.list().filter(({ volumeId, target }) => target === targets.targetOf(volumeId));
      const volumeIds = new Set([...records.engineMounts.list(), ...published].map(({ volumeId }) => volumeId));
      for (const known of [lastRequestedAt, idleSince, warnedUnlisted])
        for (const id of known.keys()) if (!volumeIds.has(id)) known.delete(id);
      const keys = new Set(records.engineMounts.list().map(engineMountIdentity));
      for (const key of requestedAt.keys()) if (!keys.has(key)) requestedAt.delete(key);
      // Refresh even if nothing is mounted, to learn which volumes stopped containers reference.
      await parts.references().refreshAll(scope);
      await fairPass(volumeIds, scope, reconcileOne);
    },
  };
}

export const enginesAnswered = (engineMounts: readonly EngineMount[], { answered }: ReferenceReport): boolean =>
  engineMounts.every((hold) => answered.has(engineKindOf(hold)));

/** Identifies an engine mount. */
export const engineMountIdentity = ({
  volumeId,
  plugin,
  id,
}: Pick<EngineMount, 'volumeId' | 'plugin' | 'id'>): string => JSON.stringify([volumeId, plugin, id]);
