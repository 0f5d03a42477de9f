import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import type { ContainerReferences } from './container-references.ts';
import { engineKindOf, type HeldTargets, type PluginName } from './containers.ts';
import { createEngineTargets } from './engine-targets.ts';
import { stowageError } from './errors.ts';
import { createIdleEngineMounts, engineMountIdentity, enginesAnswered } from './idle-engine-mounts.ts';
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
export interface EngineMounts extends HeldTargets {
  /**
   * Returns the path of the volume's files. A repeated request with the same id needs one more unmount, except from Podman, which always
   * uses the same id.
   */
  mount(volume: Volume, plugin: PluginName, id: string, call: Call): Promise<string>;
  /** Succeeds if not mounted. Also succeeds if the server does not answer: the volume is unmounted later. */
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
  handleContainerChange(volumes: readonly VolumeId[], scope: Scope): Promise<void>;
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
  readonly references: () => Pick<
    ContainerReferences,
    'query' | 'lastKnown' | 'isLive' | 'refreshAll' | 'lastConnectedAt'
  >;
  readonly remapped: RemappedUsers;
  /** Volumes are published for engines at `<folder>/<volume id>`. */
  readonly folder: string;
  readonly stagingPathOf: (volume: VolumeId) => string;
  readonly node: NodeName;
  readonly clock: Clock;
  readonly log: Log;
}

/** The timeout per volume. If the server does not answer, an unmount takes about 20 s. */
const volumeTimeoutMs = 60_000;
const maxConcurrentVolumes = 4;

/** Docker's event for the end of a container comes before its list shows it, and no further event follows. */
const refreshDelaysMs = [50, 150, 300, 500, 1_000, 3_000];

export function createEngineMounts(parts: EngineMountsParts): EngineMounts {
  const { records, operations, clock, log, node } = parts;
  const closing = new AbortController();
  const targets = createEngineTargets(parts);
  const { targetOf, pathOf, tryUnpublish } = targets;
  const idle = createIdleEngineMounts({ ...parts, closing: closing.signal }, targets);

  /** Runs in the background. When a refresh shows that the container ended, `handleContainerChange` unmounts the volume. */
  async function refreshUntilEnded(id: VolumeId): Promise<void> {
    const { signal } = closing;
    try {
      for (const ms of refreshDelaysMs) {
        await clock.sleep(ms, signal);
        if (records.engineMounts.byVolume(id).length > 0 || !parts.references().isLive(id)) return;
        await parts.references().refreshAll({ signal, log });
      }
    } catch (thrown) {
      if (!signal.aborted)
        log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
    }
  }

  return {
    pathOf,
    isHeld: (id, target) => target === targetOf(id) && records.engineMounts.byVolume(id).length > 0,
    mount: async (volume, plugin, id, call) => {
      await parts.remapped.refuseIfRemapped(volume, id, call);
      using _ = await operations.lock([engineMountKey(volume.id)], call.signal);
      idle.noteRequest(volume.id);
      // The mount is left over from a container that just ended, possibly because the mount died.
      const isLeftover = pathOf(volume.id) !== undefined && records.engineMounts.byVolume(volume.id).length === 0;
      if (isLeftover && (await parts.mounts().isDead(volume.id, call))) await tryUnpublish(volume.id, call);
      // Record the engine mount before mounting: after a crash, the start-up unmounts engine targets without a record.
      const engineMount = { volumeId: volume.id, plugin, id, since: clock.now() };
      const isKnown = records.engineMounts
        .byVolume(volume.id)
        .some((one) => engineMountIdentity(one) === engineMountIdentity(engineMount));
      const isAlreadyRecorded = isKnown && engineKindOf(engineMount) === 'podman';
      if (!isAlreadyRecorded) records.engineMounts.add(engineMount);
      // After a crash Docker knows the id but not its count, so a repeated request does not make the count certain.
      if (!isKnown) idle.noteCounted(engineMount);
      try {
        const user = { kind: 'container', name: plugin, node } as const;
        const publishOptions = { readOnly: false, user, ownTarget: true };
        if (parts.mounter.unable === undefined) await parts.mounter.openShared(parts.folder, call);
        return (await parts.mounts().publish(volume.id, targetOf(volume.id), publishOptions, call)).target;
      } catch (thrown) {
        if (!isAlreadyRecorded) records.engineMounts.release(volume.id, plugin, id);
        throw thrown;
      }
    },
    unmount: async (id, plugin, mountId, call) => {
      using _ = await operations.lock([engineMountKey(id)], call.signal);
      records.engineMounts.release(id, plugin, mountId);
      if (records.engineMounts.byVolume(id).length > 0) return;
      // Docker unmounts before its list shows the end of the container. And if counts went wrong, another container may still run: it
      // must not lose its mount.
      if (parts.references().isLive(id)) void refreshUntilEnded(id);
      else await tryUnpublish(id, call);
    },
    handleContainerChange: async (ids, scope) => {
      const isOver = (id: VolumeId): boolean =>
        records.engineMounts.byVolume(id).length === 0 && !parts.references().isLive(id);
      const unusedVolumes = ids.filter((id) => pathOf(id) !== undefined && isOver(id));
      await eachBounded(unusedVolumes, maxConcurrentVolumes, async (id) => {
        using limit = clock.deadline(volumeTimeoutMs, scope.signal);
        const limitedScope = { ...scope, signal: limit.signal };
        try {
          using _ = await operations.lock([engineMountKey(id)], limitedScope.signal);
          if (isOver(id)) await tryUnpublish(id, { ...limitedScope, requestId: `holds:${id}` });
        } catch (thrown) {
          log.info('a volume stays mounted for now', { volume: id, why: stowageError(thrown).message });
        }
      });
    },
    dropStale: async (volume, scope) => {
      if (records.engineMounts.byVolume(volume.id).length === 0 && pathOf(volume.id) === undefined) return;
      const mountsBefore = records.engineMounts.byVolume(volume.id);
      // Query the engines before taking the lock: Podman does not answer while it waits for a mount, and the mount waits for the lock.
      const report = await parts.references().query(volume, scope);
      using _ = await operations.lock([engineMountKey(volume.id)], scope.signal);
      const engineMounts = records.engineMounts.byVolume(volume.id);
      if (!isDeepStrictEqual(engineMounts, mountsBefore)) return;
      // If the count is certain, the engine may be filling the volume for a container that it does not list yet.
      if (
        report.references.length === 0 &&
        enginesAnswered(engineMounts, report) &&
        !engineMounts.some(idle.isCountCertain)
      )
        await idle.drop(volume.id, 'no container references it', scope);
    },
    close: async (scope) => {
      closing.abort();
      if (parts.mounter.unable === undefined && records.engineMounts.list().length === 0)
        await parts.mounter.closeShared(parts.folder, scope);
    },
    reconcile: async (scope) => {
      await parts.remapped.refreshAnswers(scope);
      await idle.reconcile(scope);
    },
  };
}
