import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ContainerReferences, ReferenceReport } from './container-references.ts';
import { type EngineHolds, type EngineMount, engineKindOf, type PluginName } from './containers.ts';
import { stowageError } from './errors.ts';
import { createFairPass } from './fair-pass.ts';
import { engineMountKey } from './lock-keys.ts';
import type { NodeName, Volume, VolumeId } from './model.ts';
import type { MountQueries } from './mount-queries.ts';
import type { Call, Operations } from './operations.ts';
import type { Mounter, Records } from './ports.ts';
import type { Publish } from './publish.ts';
import type { RemappedUsers } from './remapped-users.ts';
import type { Unpublish } from './unpublish.ts';

/**
 * Mounts that container engines requested. All engine mounts of a volume share one target: the first one publishes it, the last one
 * unpublishes it. Counts become wrong when either side dies between acting and answering; then the engines' container lists decide.
 */
export interface EngineMounts extends EngineHolds {
  /**
   * Returns the path of the volume's files. A repeated request with the same id needs one more unmount, except from Podman, which always
   * uses the same id.
   */
  mount(volume: Volume, plugin: PluginName, id: string, call: Call): Promise<string>;
  /** Not mounted is success. Also succeeds if the server does not answer; the volume is unmounted later. */
  unmount(volume: VolumeId, plugin: PluginName, id: string, call: Call): Promise<void>;
  /** Undefined: the volume is not published for engines. */
  pathOf(volume: VolumeId): string | undefined;
  /**
   * Drops engine mounts that are certainly stale: the engines answered, and no container references the volume. Call it before
   * checking whether the volume is in use, and before taking any of the volume's locks.
   */
  dropStale(volume: Volume, scope: Scope): Promise<void>;
  /** Drops stale mounts of all volumes, and of volumes whose containers have not run for a while. Retries failed unmounts. */
  reconcile(scope: Scope): Promise<void>;
  /** Containers of these volumes changed: unmounts volumes that were kept only for a running container. Never throws. */
  changed(volumes: readonly VolumeId[], scope: Scope): Promise<void>;
  /** On shutdown: removes the shared folder if no engine has anything mounted. */
  close(scope: Scope): Promise<void>;
}

export interface EngineMountsParts {
  readonly records: Records;
  readonly mounts: () => Pick<MountQueries, 'isDead' | 'mountsOf'> & {
    readonly publish: Publish;
    readonly unpublish: Unpublish;
  };
  readonly mounter: Pick<Mounter, 'openShared' | 'closeShared' | 'unable'>;
  readonly operations: Operations;
  readonly references: () => Pick<ContainerReferences, 'of' | 'known' | 'isLive' | 'refreshAll' | 'foundAt'>;
  readonly remapped: RemappedUsers;
  /** Volumes are published for engines at `<folder>/<volume id>`. */
  readonly folder: string;
  readonly stageOf: (volume: VolumeId) => string;
  readonly node: NodeName;
  readonly clock: Clock;
  readonly log: Log;
}

/** A stopped container may be starting: the engine mounts its volumes first, and lists it as running later. */
const startingMs = 60_000;
/**
 * Docker mounts a new volume before it lists the container, to copy the image's files into it, which can take long. Applies only to
 * mounts that neither side can have lost in a crash.
 */
const fillingMs = 600_000;

/** Per volume. A server that does not answer takes about 20 s. */
const perVolumeMs = 60_000;
const inParallel = 4;

/** Docker's event for the end of a container comes before its list shows it, and no further event follows. */
const endingMs = [50, 150, 300, 500, 1_000, 3_000];

export function createEngineMounts(parts: EngineMountsParts): EngineMounts {
  const { records, operations, clock, log, node } = parts;
  const targetOf = (id: VolumeId): string => `${parts.folder}/${id}`;
  const pathOf = (id: VolumeId): string | undefined => records.mounts.at(targetOf(id))?.target;
  /** When an engine last requested a mount, and since when no running container was seen; by this process's clock. */
  const asked = new Map<VolumeId, number>();
  const idle = new Map<VolumeId, number>();
  /** Volumes for which the warning about an unlisted container was logged. */
  const unlisted = new Set<VolumeId>();
  const closing = new AbortController();
  const fairPass = createFairPass<VolumeId>(clock, { inParallel, itemMs: perVolumeMs });
  /** When each mount was requested. Mounts of an earlier process are not in it. */
  const since = new Map<string, number>();

  /** Call it with the lock held. False: still mounted. */
  async function tryUnpublish(id: VolumeId, call: Call): Promise<boolean> {
    if (pathOf(id) === undefined) return true;
    try {
      await parts.mounts().unpublish(targetOf(id), id, call, { force: false, unheld: true });
      return true;
    } catch (thrown) {
      call.signal.throwIfAborted();
      // The engine does not retry. The mount stays until the written data, now in the keeper's memory, is on the server.
      const { message } = stowageError(thrown);
      log.warn('a volume that no container uses stays mounted for now', { volume: id, why: message });
      return false;
    }
  }

  async function drop(id: VolumeId, why: string, scope: Scope): Promise<void> {
    for (const { plugin } of records.engineMounts.of(id))
      log.info('a mount that no container uses is dropped', { volume: id, plugin, why });
    // Keep the record while the volume cannot be unmounted; the next pass retries.
    if (!(await tryUnpublish(id, { ...scope, requestId: `holds:${id}` }))) return;
    records.engineMounts.clear(id);
    idle.delete(id);
  }

  /** Neither this process nor the engine restarted since the request, so both have the same count. */
  function isCertain(hold: EngineMount): boolean {
    const at = since.get(keyOf(hold));
    return at !== undefined && at >= (parts.references().foundAt(engineKindOf(hold)) ?? Number.POSITIVE_INFINITY);
  }

  const enginesAnswered = (holds: readonly EngineMount[], { answered }: ReferenceReport): boolean =>
    holds.every((hold) => answered.has(engineKindOf(hold)));

  /** True if this mount namespace has bind mounts of the volume that we did not make. */
  async function isBoundElsewhere(id: VolumeId, scope: Scope): Promise<boolean> {
    const mount = records.mounts.at(targetOf(id));
    if (mount === undefined) return false;
    const ours = new Set([parts.stageOf(id), ...records.mounts.of(id).map(({ target }) => target)]);
    const seen = await parts.mounts().mountsOf(mount.source, id, scope);
    // Keep the mount if its source kind is unknown: no client can tell where it is bound.
    return seen === undefined || seen.some((at) => !ours.has(at));
  }

  async function dropIfUnused(id: VolumeId, scope: Scope): Promise<void> {
    const volume = records.volumes.byId(id);
    // Ask before taking the lock: Podman does not answer while it waits for a mount, and the mount waits for the lock.
    const report = await parts.references().of(volume ?? id, scope);
    using _ = await operations.lock([engineMountKey(id)], scope.signal);
    const holds = records.engineMounts.of(id);
    if (pathOf(id) === undefined) return await drop(id, 'it is not mounted', scope);
    if (holds.length === 0) return await releaseOne(id, scope);
    // Podman remembers what it has mounted and does not request it again.
    if (holds.some((hold) => engineKindOf(hold) === 'podman')) return;
    if (!enginesAnswered(holds, report) || report.references.some(({ running }) => running)) {
      idle.delete(id);
      return;
    }
    // Another host destroyed the volume: Docker does not unmount a volume that it cannot get, and cannot be filling it.
    if (volume === undefined && report.references.length === 0)
      return await drop(id, 'it is gone, and no container names it', scope);
    const now = clock.elapsed();
    const idleSince = idle.get(id) ?? now;
    idle.set(id, idleSince);
    if (report.references.length === 0 && now - idleSince >= startingMs) warnUnlisted(id, holds);
    const waitMs = holds.some(isCertain) ? fillingMs : startingMs;
    if (now - Math.max(idleSince, asked.get(id) ?? idleSince) < waitMs) return;
    if (await isBoundElsewhere(id, scope)) return;
    await drop(id, 'none of its containers runs', scope);
  }

  async function reconcileOne(id: VolumeId, scope: Scope): Promise<void> {
    // A shortcut for the usual case, a running container. `dropIfUnused` decides the rest with fresh data and the lock held.
    const runs = parts
      .references()
      .known(id)
      .some(({ running }) => running);
    if (runs && pathOf(id) !== undefined && records.engineMounts.of(id).length > 0) {
      idle.delete(id);
      return;
    }
    try {
      await dropIfUnused(id, scope);
    } catch (thrown) {
      const why = stowageError(thrown).message;
      if (!closing.signal.aborted) log.warn('a mount for containers could not be reconciled', { volume: id, why });
    }
  }

  /** For a volume that the engine released while one of its containers seemed to run. Call it with the lock held. */
  async function releaseOne(id: VolumeId, scope: Scope): Promise<void> {
    if (!parts.references().isLive(id)) await drop(id, 'none of its containers runs', scope);
  }

  /** Runs in the background. When a refresh shows that the container ended, `changed` unmounts the volume. */
  async function refreshUntilEnded(id: VolumeId): Promise<void> {
    const { signal } = closing;
    try {
      for (const ms of endingMs) {
        await clock.sleep(ms, signal);
        if (records.engineMounts.of(id).length > 0 || !parts.references().isLive(id)) return;
        await parts.references().refreshAll({ signal, log });
      }
    } catch (thrown) {
      if (!signal.aborted)
        log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
    }
  }

  /** Call it after `startingMs`: a container that is being created is listed soon. */
  function warnUnlisted(id: VolumeId, holds: readonly EngineMount[]): void {
    if (unlisted.has(id)) return;
    unlisted.add(id);
    const [{ plugin } = { plugin: undefined }] = holds;
    const action =
      'It is being filled from an image, or an engine forgot it in a crash: then it is dropped by itself. Or a second engine uses Stowage, whose containers are not known here: it needs a Stowage of its own.';
    log.warn('a volume is mounted for a container that its engine does not list', { volume: id, plugin, action });
  }

  return {
    pathOf,
    isHeld: (id, target) => target === targetOf(id) && records.engineMounts.of(id).length > 0,
    mount: async (volume, plugin, id, call) => {
      await parts.remapped.refuse(volume, id, call);
      using _ = await operations.lock([engineMountKey(volume.id)], call.signal);
      asked.set(volume.id, clock.elapsed());
      idle.delete(volume.id);
      // Left over from a container that just ended, possibly because the mount died.
      const isLeftover = pathOf(volume.id) !== undefined && records.engineMounts.of(volume.id).length === 0;
      if (isLeftover && (await parts.mounts().isDead(volume.id, call))) await tryUnpublish(volume.id, call);
      // Record it before mounting: after a crash, the start-up unmounts engine targets without a record.
      const hold = { volumeId: volume.id, plugin, id, since: clock.now() };
      const before = records.engineMounts.of(volume.id).some((one) => keyOf(one) === keyOf(hold));
      const isThere = before && engineKindOf(hold) === 'podman';
      if (!isThere) records.engineMounts.add(hold);
      // After a crash Docker knows the id but not its count, so a repeated request does not make the count certain.
      if (!before) since.set(keyOf(hold), clock.elapsed());
      try {
        const user = { kind: 'container', name: plugin, node } as const;
        const how = { readOnly: false, user, ownTarget: true };
        if (parts.mounter.unable === undefined) await parts.mounter.openShared(parts.folder, call);
        return (await parts.mounts().publish(volume.id, targetOf(volume.id), how, call)).target;
      } catch (thrown) {
        if (!isThere) records.engineMounts.release(volume.id, plugin, id);
        throw thrown;
      }
    },
    unmount: async (id, plugin, hold, call) => {
      using _ = await operations.lock([engineMountKey(id)], call.signal);
      records.engineMounts.release(id, plugin, hold);
      if (records.engineMounts.of(id).length > 0) return;
      // Docker unmounts before its list shows the end of the container. And if counts went wrong, another container may still run: it
      // must not lose its mount.
      if (parts.references().isLive(id)) void refreshUntilEnded(id);
      else await tryUnpublish(id, call);
    },
    changed: async (ids, scope) => {
      const isOver = (id: VolumeId): boolean =>
        records.engineMounts.of(id).length === 0 && !parts.references().isLive(id);
      const over = ids.filter((id) => pathOf(id) !== undefined && isOver(id));
      await eachBounded(over, inParallel, async (id) => {
        using limit = clock.deadline(perVolumeMs, scope.signal);
        const own = { ...scope, signal: limit.signal };
        try {
          using _ = await operations.lock([engineMountKey(id)], own.signal);
          if (isOver(id)) await tryUnpublish(id, { ...own, requestId: `holds:${id}` });
        } catch (thrown) {
          log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
        }
      });
    },
    dropStale: async (volume, scope) => {
      if (records.engineMounts.of(volume.id).length === 0 && pathOf(volume.id) === undefined) return;
      const before = records.engineMounts.of(volume.id);
      // Ask before taking the lock, as in dropIfUnused.
      const report = await parts.references().of(volume, scope);
      using _ = await operations.lock([engineMountKey(volume.id)], scope.signal);
      const holds = records.engineMounts.of(volume.id);
      if (!isDeepStrictEqual(holds, before)) return;
      // If the count is certain, the engine may be filling the volume for a container that it does not list yet.
      if (report.references.length === 0 && enginesAnswered(holds, report) && !holds.some(isCertain))
        await drop(volume.id, 'no container names it', scope);
    },
    close: async (scope) => {
      closing.abort();
      if (parts.mounter.unable === undefined && records.engineMounts.list().length === 0)
        await parts.mounter.closeShared(parts.folder, scope);
    },
    reconcile: async (scope) => {
      await parts.remapped.look(scope);
      const published = records.mounts.list().filter(({ volumeId, target }) => target === targetOf(volumeId));
      const all = new Set([...records.engineMounts.list(), ...published].map(({ volumeId }) => volumeId));
      for (const known of [asked, idle, unlisted]) for (const id of known.keys()) if (!all.has(id)) known.delete(id);
      const keys = new Set(records.engineMounts.list().map(keyOf));
      for (const key of since.keys()) if (!keys.has(key)) since.delete(key);
      // Even if nothing is mounted, to learn which volumes stopped containers reference.
      await parts.references().refreshAll(scope);
      await fairPass(all, scope, reconcileOne);
    },
  };
}

const keyOf = ({ volumeId, plugin, id }: Pick<EngineMount, 'volumeId' | 'plugin' | 'id'>): string =>
  JSON.stringify([volumeId, plugin, id]);
