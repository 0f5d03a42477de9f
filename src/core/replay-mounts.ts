import { eachBounded } from '#base/each-bounded.ts';
import type { Log, Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import { stageKey, targetKey } from './lock-keys.ts';
import type { Mount, Operation } from './model.ts';
import { isMountOperation } from './mount-operations.ts';
import type { Work } from './operation-work.ts';
import type { Operations } from './operations.ts';
import type { Records } from './ports.ts';
import type { TargetBinding } from './target-binding.ts';

/** Replays operations that a crash interrupted: completes unmounts, undoes mounts. */
export type ReplayMounts = (scope: Scope) => Promise<void>;

export interface ReplayMountsParts {
  readonly records: Pick<Records, 'mounts' | 'operations'>;
  readonly operations: Pick<Operations, 'resume'>;
  readonly log: Log;
}

const maxConcurrentReplays = 8;

export function createReplayMounts(parts: ReplayMountsParts, binding: TargetBinding): ReplayMounts {
  const { records, operations, log } = parts;

  async function replayOne(kind: string, mount: Mount, work: Work): Promise<void> {
    if (kind === 'volume.unmount') return await binding.unmount(mount, work);
    if (records.mounts.byTarget(mount.target) !== undefined) return;
    try {
      await binding.undo(mount, work);
    } catch (thrown) {
      if (stowageError(thrown).code !== 'in-use') throw thrown;
      // The mount is in use, so it had completed: keep it.
      records.mounts.put(mount);
    }
  }

  async function resume(operation: Operation, scope: Scope): Promise<void> {
    const mount = operation.params['mount'] as Mount;
    try {
      await operations.resume(operation, scope, {
        keys: [stageKey(mount.volumeId), targetKey(mount.target)],
        // Retries would keep the volume locked, so nobody could mount it. The caller repeats an unmount, and the next start cleans up the
        // rest of a mount.
        once: true,
        work: async (work) => ({ value: await replayOne(operation.kind, mount, work) }),
      });
    } catch (thrown) {
      log.warn('mount could not be repaired', { target: mount.target, why: stowageError(thrown).message });
    }
  }

  return async (scope) => {
    const interrupted = records.operations.listUnfinished().filter(({ kind }) => isMountOperation(kind));
    await eachBounded(interrupted, maxConcurrentReplays, (operation) => resume(operation, scope));
  };
}
