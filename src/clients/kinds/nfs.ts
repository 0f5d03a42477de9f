import { randomBytes } from 'node:crypto';
import { stat } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { SourceOf, VolumeId } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, Mounter, StageOptions, StagingTarget } from '#core/ports.ts';
import { ownSource } from '#core/volume-staging.ts';
import { fuseType, mountFuse, setReadAhead } from '../data-path/fuse-mount.ts';
import type { Keepers } from '../data-path/keepers.ts';
import { mountSpecOf } from '../data-path/nfs-mount-spec.ts';
import type { MountTable } from '../mounter/mountinfo.ts';
import type { PathAccess } from '../mounter/path-access.ts';
import { resolveOwnParents } from '../mounter/paths.ts';
import type { RunProgram } from '../mounter/run-program.ts';
import { enforcementUnsupported, noAnswer } from './nfs-errors.ts';
import { mountByHost } from './nfs-host.ts';
import { nfsMountsOf } from './nfs-mounts.ts';
import { createServedMounts, keeperKindOf, keeperMountOf } from './nfs-served-mounts.ts';
import { nfsSources } from './nfs-sharing.ts';
import { makeStage, removeStage } from './staging.ts';

export interface NfsClientParts {
  readonly mounter: Mounter;
  readonly run: RunProgram;
  readonly clock: Clock;
  readonly accessPath: PathAccess;
  readonly keepers: Keepers;
  readonly readTable: () => Promise<MountTable>;
  /** Waits for programs that a killed Stowage left running. */
  readonly waitForOrphans?: (scope: Scope) => Promise<void>;
  /** This Stowage's instance. */
  readonly instance: string;
}

type NfsSource = SourceOf<'nfs'>;

const undoTimeoutMs = 10_000;
const initWaitMs = 300;
const unending = new AbortController().signal;

/** Mounts a directory of an NFS server with our own data path, which needs only /dev/fuse of the host. */
export function createNfsClient(parts: NfsClientParts): Client<'nfs'> {
  const { mounter, clock, keepers, readTable } = parts;
  const servedMounts = createServedMounts({ keepers, clock, readTable });

  /** Removes a mount that is in the mount table but that no data path serves, to make room for a new one. */
  async function reuseOrRemoveStage(
    source: NfsSource,
    volumeId: VolumeId,
    mountPoint: string,
    scope: Scope,
  ): Promise<boolean> {
    const currentMount = (await readTable()).mountAt(mountPoint);
    if (currentMount === undefined) return false;
    const ours = keeperMountOf(currentMount, mountPoint, volumeId, source);
    if (await servedMounts.isServed(ours, scope)) return true;
    scope.log.warn('replacing a mount that no data path serves', { at: mountPoint });
    // Aborts pending requests, since no process will answer them.
    await mounter.detach(mountPoint, scope, { abort: true });
    const { id, kind } = ours;
    await keepers.useHolder(id, kind, scope.signal, (keeper) => keeper.drop(id, scope.signal));
    return false;
  }

  async function stage(
    source: NfsSource,
    { path, volumeId }: StagingTarget,
    scope: Scope,
    how: StageOptions | undefined,
  ): Promise<void> {
    const mountPoint = await makeStage(path, 'filesystem');
    if (await reuseOrRemoveStage(source, volumeId, mountPoint, scope)) return;
    const spec = await mountSpecOf(source, parts.instance);
    // A new id each time: containers may still use an earlier mount of the volume, which stays served.
    const id = ownSource(volumeId, randomBytes(4).toString('hex'));
    await keepers.use(keeperKindOf(source), scope.signal, async (keeper) => {
      await using mounted = await mountFuse(id, mountPoint, spec);
      try {
        await keeper.adopt(id, spec, mounted.fd, scope.signal);
        // If the mount may not be accessed, wait for INIT, after which the kernel resets what was set before.
        await (how?.skipServerCheck === true
          ? clock.sleep(initWaitMs, scope.signal)
          : requireAnswer(parts, mountPoint, scope));
        await setReadAhead(await readTable(), mountPoint, scope);
      } catch (cause) {
        using limit = clock.deadline(undoTimeoutMs, unending);
        // Also aborts pending requests, above all our own stat.
        await mounter.detach(mountPoint, { ...scope, signal: limit.signal }, { abort: true }).catch(() => undefined);
        throw cause;
      }
    });
  }

  return {
    kind: 'nfs',
    nodeLocal: false,
    outlivesMount: false,
    sourceFixedWhileStaged: false,
    ...nfsSources,
    isServedElsewhere: servedMounts.isServedElsewhere,
    validate: refuse,
    stage: async (source, target, scope, how) => {
      requireMounting(mounter);
      refuse(source);
      if (source.way.client === 'host')
        await mountByHost(parts, source, await makeStage(target.path, 'filesystem'), scope);
      else await stage(source, target, scope, how);
    },
    unstage: async (source, { path, volumeId }, scope, how) => {
      requireMounting(mounter);
      const mountPoint = resolveOwnParents(path);
      if (mountPoint === undefined) return;
      const currentMount = (await readTable()).mountAt(mountPoint);
      if (how?.force === true) await mounter.detach(mountPoint, scope, { abort: true });
      else await mounter.unmount(mountPoint, scope);
      // The unmount succeeded, whatever the keeper reports.
      if (currentMount?.type === fuseType)
        await servedMounts
          .waitForEnd(keeperMountOf(currentMount, mountPoint, volumeId, source), scope)
          .catch((cause: unknown) =>
            scope.log.info('could not determine whether a mount has ended', { at: mountPoint, why: String(cause) }),
          );
      await removeStage(mountPoint, scope);
    },
    mountsOf: async (source, target, scope) => {
      await parts.waitForOrphans?.(scope);
      return nfsMountsOf(source, target.path, await readTable());
    },
    flush: async (source, { path, volumeId }, scope) => {
      const mountPoint = resolveOwnParents(path);
      const currentMount = mountPoint === undefined ? undefined : (await readTable()).mountAt(mountPoint);
      if (mountPoint !== undefined && currentMount?.type === fuseType)
        await servedMounts.refuseUnwritten(keeperMountOf(currentMount, mountPoint, volumeId, source), scope);
    },
    findDeadMounts: servedMounts.findDeadMounts,
    daemon: {
      // The key includes the client: mounts of the system's client have no process of ours, so they don't share its state.
      key: ({ way: { client, network, sourcePorts } }) => JSON.stringify([client, network, sourcePorts]),
      findProblem: async (source, _target, scope) =>
        source.way.client === 'host' ? undefined : await keepers.problemOf(keeperKindOf(source), scope.signal),
    },
  };
}

/** Checks that the new mount works. */
async function requireAnswer(
  { accessPath, readTable }: NfsClientParts,
  mountPoint: string,
  { signal }: Scope,
): Promise<void> {
  try {
    await accessPath({ path: mountPoint, table: await readTable(), signal }, () => stat(mountPoint));
  } catch (cause) {
    signal.throwIfAborted();
    throw cause instanceof StowageError ? cause : noAnswer(cause);
  }
}

const refuse = ({ way: { client, quota, sourcePorts } }: NfsSource): void => {
  if (client === 'host' && quota !== undefined) throw enforcementUnsupported();
  if (typeof sourcePorts !== 'number') return;
  throw new StowageError('volumes of a store with a single source port cannot be mounted: Stowage itself is using it', {
    code: 'unsupported',
    reason: 'source-port-taken',
    action: "Have the store's administrator use sourceport=privileged.",
  });
};
