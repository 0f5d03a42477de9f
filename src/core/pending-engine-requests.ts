import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { endsWithin } from '#base/wait.ts';
import type { VolumeId } from './model.ts';

/**
 * Recent requests of container engines. An engine that creates a container requests its volumes first and lists the container a moment
 * later; in between, only these requests show that a container is about to reference the volume.
 */
export interface PendingEngineRequests {
  /**
   * Call it before telling an engine about a volume. Waits while the volume is being deleted. `over`: that deletion ended, so look the volume
   * up again. `deleting`: it is still being deleted after `timeoutMs`.
   */
  note(volume: VolumeId, signal: AbortSignal, timeoutMs?: number): Promise<'noted' | 'over' | 'deleting'>;
  /**
   * Blocks `note` for the volume until disposed. Resolves when engines have had time to list containers for earlier requests, or
   * at once if an engine deletes the volume, since it checks its own containers.
   */
  block(volume: VolumeId, isByEngine: boolean, signal: AbortSignal): Promise<Disposable>;
}

/** Docker takes milliseconds. If it first copies files into a new volume, it has the volume mounted, which counts as a use. */
const engineListDelayMs = 1_000;
/** Requests older than `engineListDelayMs` are dropped when there are this many. */
const maxRequests = 1_000;

export function createPendingEngineRequests(clock: Clock): PendingEngineRequests {
  const lastRequestAt = new Map<VolumeId, number>();
  const endOfBlock = new Map<VolumeId, Promise<void>>();

  function forgetOld(): void {
    if (lastRequestAt.size < maxRequests) return;
    const now = clock.elapsed();
    for (const [id, at] of lastRequestAt) if (now - at >= engineListDelayMs) lastRequestAt.delete(id);
  }

  return {
    note: async (id, signal, timeoutMs = Number.POSITIVE_INFINITY) => {
      const endOfDeletion = endOfBlock.get(id);
      if (endOfDeletion === undefined) {
        forgetOld();
        lastRequestAt.set(id, clock.elapsed());
        return 'noted';
      }
      const deletionEnded = unlessAborted(endOfDeletion, signal);
      if (timeoutMs !== Number.POSITIVE_INFINITY && !(await endsWithin(deletionEnded, timeoutMs, clock)))
        return 'deleting';
      await deletionEnded;
      return 'over';
    },
    block: async (id, isByEngine, signal) => {
      const endOfDeletion = Promise.withResolvers<void>();
      endOfBlock.set(id, endOfDeletion.promise);
      const unblock = (): void => {
        endOfBlock.delete(id);
        endOfDeletion.resolve();
      };
      try {
        const since = clock.elapsed() - (lastRequestAt.get(id) ?? Number.NEGATIVE_INFINITY);
        if (!isByEngine && since < engineListDelayMs) await clock.sleep(engineListDelayMs - since, signal);
      } catch (thrown) {
        unblock();
        throw thrown;
      }
      return { [Symbol.dispose]: unblock };
    },
  };
}
