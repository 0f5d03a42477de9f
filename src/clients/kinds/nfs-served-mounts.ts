import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { SourceOf, VolumeId } from '#core/model.ts';
import type { Client, StagingTarget } from '#core/ports.ts';
import { ownSource } from '#core/volume-staging.ts';
import { fuseType } from '../data-path/fuse-mount.ts';
import type { KeeperKind } from '../data-path/keeper-kind.ts';
import type { Keepers } from '../data-path/keepers.ts';
import type { MountEntry, MountTable } from '../mounter/mountinfo.ts';
import { resolveOwnParents } from '../mounter/paths.ts';
import { dataUnwritten } from './nfs-errors.ts';

type NfsSource = SourceOf<'nfs'>;

/** A mount that a keeper of this node serves. */
export interface KeeperMount {
  readonly id: string;
  readonly kind: KeeperKind;
}

/** The mounts that keepers serve, and when they end. */
export interface ServedMounts extends Required<Pick<Client<'nfs'>, 'isServedElsewhere' | 'findDeadMounts'>> {
  isServed(mount: KeeperMount, scope: Scope): Promise<boolean>;
  /** Waits until the data path has ended the unmounted file system. */
  waitForEnd(mount: KeeperMount, scope: Scope): Promise<void>;
  /** Never discard acknowledged writes on unmount. */
  refuseUnwritten(mount: KeeperMount, scope: Scope): Promise<void>;
}

interface ServedMountsOptions {
  readonly keepers: Keepers;
  readonly clock: Clock;
  readonly readTable: () => Promise<MountTable>;
}

/** How long the kernel gets to end an unmounted file system; after that it is still in use elsewhere. */
const endTimeoutMs = 2_000;
/** A file system usually ends within a millisecond. */
const [minPollMs, maxPollMs] = [1, 20];
/** For flushing dirty data to the server; shorter than the deadline of an unmount. */
const flushTimeoutMs = 4_000;
/** For the keeper's reply after the flush. */
const keeperAnswerMs = 1_500;

export function createServedMounts({ keepers, clock, readTable }: ServedMountsOptions): ServedMounts {
  const isServed = async ({ id, kind }: KeeperMount, scope: Scope): Promise<boolean> =>
    (await keepers.useHolder(id, kind, scope.signal, async ({ isStuck }) => !isStuck)) ?? false;

  async function refuseUnwritten({ id, kind }: KeeperMount, scope: Scope): Promise<void> {
    const files = await keepers.useHolder(id, kind, scope.signal, async (keeper) => {
      using limit = clock.deadline(flushTimeoutMs + keeperAnswerMs, scope.signal);
      return keeper.isStuck ? 0 : await keeper.flush(id, flushTimeoutMs, limit.signal);
    });
    if (files !== undefined && files > 0) throw dataUnwritten(files);
  }

  async function waitForEnd(ours: KeeperMount, scope: Scope): Promise<void> {
    const since = clock.elapsed();
    for (let pauseMs = minPollMs; await isServed(ours, scope); pauseMs = Math.min(2 * pauseMs, maxPollMs)) {
      if (clock.elapsed() - since > endTimeoutMs) {
        scope.log.info('a volume that was unmounted here is still in use elsewhere; its data path keeps serving it', {
          mount: ours.id,
        });
        return;
      }
      await clock.sleep(pauseMs, scope.signal);
    }
  }

  /** Whether the volume is still in use elsewhere on this node. Waits as long as a recent unmount may take to complete. */
  async function elsewhere(_source: NfsSource, { path, volumeId }: StagingTarget, scope: Scope): Promise<boolean> {
    const mountPoint = resolveOwnParents(path);
    const stagedSource = mountPoint === undefined ? undefined : (await readTable()).mountAt(mountPoint)?.source;
    const since = clock.elapsed();
    for (let pauseMs = minPollMs; ; pauseMs = Math.min(2 * pauseMs, maxPollMs)) {
      const servedIds = await keepers.servedMounts(ownSource(volumeId), scope.signal);
      if (servedIds.every((id) => id === stagedSource)) return false;
      if (clock.elapsed() - since > endTimeoutMs) return true;
      await clock.sleep(pauseMs, scope.signal);
    }
  }

  const dead: ServedMounts['findDeadMounts'] = async (staged, scope) => {
    const table = await readTable();
    const deadPaths: string[] = [];
    for (const { source, target } of staged) {
      const { path, volumeId } = target;
      const mountPoint = resolveOwnParents(path);
      if (mountPoint === undefined || source.way.client === 'host') continue;
      const currentMount = table.mountAt(mountPoint);
      if (
        currentMount === undefined ||
        !(await isServed(keeperMountOf(currentMount, mountPoint, volumeId, source), scope))
      )
        deadPaths.push(path);
    }
    return deadPaths;
  };

  return { isServed, waitForEnd, refuseUnwritten, isServedElsewhere: elsewhere, findDeadMounts: dead };
}

export function keeperKindOf({ way: { network, sourcePorts } }: NfsSource): KeeperKind {
  return { network, privilegedPorts: sourcePorts === 'privileged' };
}

export function keeperMountOf(
  currentMount: MountEntry,
  mountPoint: string,
  volumeId: VolumeId,
  source: NfsSource,
): KeeperMount {
  if (currentMount.type === fuseType && currentMount.source.startsWith(ownSource(volumeId)))
    return { id: currentMount.source, kind: keeperKindOf(source) };
  throw new StowageError(`something else is mounted at ${mountPoint}: ${currentMount.source} (${currentMount.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it: umount ${mountPoint}`,
  });
}
