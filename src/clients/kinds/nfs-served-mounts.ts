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
import { locatedOwn } from '../mounter/paths.ts';
import { unwritten } from './nfs-errors.ts';

type NfsSource = SourceOf<'nfs'>;

/** A mount that a keeper of this node serves. */
export interface OurMount {
  readonly id: string;
  readonly kind: KeeperKind;
}

/** The mounts that keepers serve, and when they end. */
export interface ServedMounts extends Required<Pick<Client<'nfs'>, 'isServedElsewhere' | 'findDeadMounts'>> {
  isServed(mount: OurMount, scope: Scope): Promise<boolean>;
  /** Waits until the data path has ended the unmounted file system. */
  waitForEnd(mount: OurMount, scope: Scope): Promise<void>;
  /** Never discard acknowledged writes on unmount. */
  refuseUnwritten(mount: OurMount, scope: Scope): Promise<void>;
}

interface ServedMountsOptions {
  readonly keepers: Keepers;
  readonly clock: Clock;
  readonly readTable: () => Promise<MountTable>;
}

/** How long the kernel gets to end an unmounted file system; after that it is still in use elsewhere. */
const endingMs = 2_000;
/** Usually it takes a millisecond. */
const [firstLookMs, longestLookMs] = [1, 20];
/** For flushing dirty data to the server; shorter than the deadline of an unmount. */
const flushMs = 4_000;
/** For the keeper's answer after that. */
const answerMs = 1_500;

export function createServedMounts({ keepers, clock, readTable }: ServedMountsOptions): ServedMounts {
  const isServed = async ({ id, kind }: OurMount, scope: Scope): Promise<boolean> =>
    (await keepers.holding(id, kind, scope.signal, async ({ isStuck }) => !isStuck)) ?? false;

  async function refuseUnwritten({ id, kind }: OurMount, scope: Scope): Promise<void> {
    const files = await keepers.holding(id, kind, scope.signal, async (keeper) => {
      using limit = clock.deadline(flushMs + answerMs, scope.signal);
      return keeper.isStuck ? 0 : await keeper.flush(id, flushMs, limit.signal);
    });
    if (files !== undefined && files > 0) throw unwritten(files);
  }

  async function waitForEnd(ours: OurMount, scope: Scope): Promise<void> {
    const since = clock.elapsed();
    for (let pauseMs = firstLookMs; await isServed(ours, scope); pauseMs = Math.min(2 * pauseMs, longestLookMs)) {
      if (clock.elapsed() - since > endingMs) {
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
    const place = locatedOwn(path);
    const here = place === undefined ? undefined : (await readTable()).at(place)?.source;
    const since = clock.elapsed();
    for (let pauseMs = firstLookMs; ; pauseMs = Math.min(2 * pauseMs, longestLookMs)) {
      const all = await keepers.serving(ownSource(volumeId), scope.signal);
      if (all.every((id) => id === here)) return false;
      if (clock.elapsed() - since > endingMs) return true;
      await clock.sleep(pauseMs, scope.signal);
    }
  }

  const dead: ServedMounts['findDeadMounts'] = async (staged, scope) => {
    const table = await readTable();
    const dead: string[] = [];
    for (const { source, target } of staged) {
      const { path, volumeId } = target;
      const place = locatedOwn(path);
      if (place === undefined || source.way.client === 'host') continue;
      const there = table.at(place);
      if (there === undefined || !(await isServed(ourMount(there, place, volumeId, source), scope))) dead.push(path);
    }
    return dead;
  };

  return { isServed, waitForEnd, refuseUnwritten, isServedElsewhere: elsewhere, findDeadMounts: dead };
}

export function kindOf({ way: { network, sourcePorts } }: NfsSource): KeeperKind {
  return { network, privilegedPorts: sourcePorts === 'privileged' };
}

export function ourMount(there: MountEntry, place: string, volumeId: VolumeId, source: NfsSource): OurMount {
  if (there.type === fuseType && there.source.startsWith(ownSource(volumeId)))
    return { id: there.source, kind: kindOf(source) };
  throw new StowageError(`something else is mounted at ${place}: ${there.source} (${there.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it: umount ${place}`,
  });
}
