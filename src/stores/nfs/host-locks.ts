import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import { type Hold, type HostLocks, presumedDeadMs } from '../file-store/store-root.ts';
import type { NfsFiles } from './files.ts';
import { isFreeMark } from './lock-marks.ts';
import { createStaleFileWatch } from './stale-file-watch.ts';
import { createVolumeLocks, deadLock, type TakenLock, type VolumeLocksParts } from './volume-locks.ts';

/** Longer than the time after which the creator of a record gives up: see `presumedDeadMs`. */
const deadRecord = { afterMs: presumedDeadMs, steadyMs: 2_000 } as const;
const lockTimeoutMs = 15_000;
const lockRetryMs = 100;

export interface HostLocksParts extends Omit<VolumeLocksParts, 'watch'> {
  readonly files: NfsFiles;
  readonly clock: Clock;
  readonly store: string;
  /** `.stowage/locks` */
  readonly folder: string;
  readonly usesOf: HostLocks['usesOf'];
}

/** One host at a time changes a volume: docs/designs/store-locks.md. Never compares two clocks. */
export function createHostLocks(parts: HostLocksParts): HostLocks {
  const { files, marks, folder, clock, store, usesOf } = parts;
  const watch = createStaleFileWatch(clock);
  const locks = createVolumeLocks({ ...parts, watch });
  /** Volumes that we have locked, and whether the release keeps their lock files. */
  const heldVolumes = new Map<VolumeId, { readonly taken: TakenLock; after: 'keep' | 'remove' }>();

  async function retryUntilLocked<T>(
    id: VolumeId,
    signal: AbortSignal,
    attempt: () => Promise<T | undefined>,
  ): Promise<T> {
    for (const since = clock.elapsed(); ; ) {
      const result = await attempt();
      if (result !== undefined) return result;
      if (clock.elapsed() - since > lockTimeoutMs) throw volumeLocked(id, store);
      await clock.sleep(lockRetryMs, signal);
    }
  }

  async function lock(id: VolumeId, signal: AbortSignal): Promise<TakenLock & Pick<Hold, 'since'>> {
    const taken = await retryUntilLocked(id, signal, async () => {
      const since = clock.elapsed();
      const ownLock = await locks.tryTake(`${folder}/${id}`, signal);
      return ownLock && { ...ownLock, since };
    });
    try {
      if (taken.isSpareUnchecked)
        await retryUntilLocked(id, signal, async () => (await locks.isSpareFree()) || undefined);
    } catch (cause) {
      await locks.release(taken, 'unchecked');
      throw cause;
    }
    return taken;
  }

  return {
    hold: async (ids, signal) => {
      await using stack = new AsyncDisposableStack();
      let since = Number.POSITIVE_INFINITY;
      for (const id of [...new Set(ids)].sort()) {
        const taken = await lock(id, signal);
        since = Math.min(since, taken.since);
        const holding = { taken, after: 'keep' as 'keep' | 'remove' };
        heldVolumes.set(id, holding);
        stack.defer(async () => {
          heldVolumes.delete(id);
          // After this time another host may have taken the lock over. Don't remove its lock file.
          const isLate = clock.elapsed() - taken.since > presumedDeadMs;
          await locks.release(taken, isLate ? 'keep' : holding.after);
        });
      }
      const held = stack.move();
      return { since, [Symbol.asyncDispose]: () => held.disposeAsync() };
    },
    forget: (id, why) => {
      const holding = heldVolumes.get(id);
      if (holding !== undefined && (why === 'gone' || holding.taken.isNew)) holding.after = 'remove';
    },
    holderOf: async (id) => {
      const path = `${folder}/${id}`;
      const found = await files.attributes(path);
      if (found === undefined || isFreeMark(found) || marks.isOurs(found.mtime)) return 'nobody';
      return watch.isUnchanged(path, found, deadLock.afterMs) ? 'stale' : 'another';
    },
    usesOf,
    takeName: (path) => files.create(path),
    takeOverName: async (path, isTorn) => {
      const found = await files.attributes(path);
      if (found === undefined) return false;
      const isOurs = found.size === 0 && marks.isOurs(found.mtime);
      if (!isOurs && !watch.isDead(path, found, deadRecord)) return false;
      if (!(await isTorn()) || !(await files.resetMark(path, found))) return false;
      watch.forget(path);
      return true;
    },
  };
}

function volumeLocked(id: string, store: string): StowageError {
  return new StowageError(`another Stowage instance is working on volume ${id} in store ${store}`, {
    code: 'busy',
    reason: 'volume-locked-elsewhere',
    action: `Try again in a moment. If that instance has died, its lock can be taken over after ${deadLock.afterMs / 60_000} minutes.`,
  });
}
