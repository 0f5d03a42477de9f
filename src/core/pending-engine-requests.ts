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
   * up again. `deleting`: it is still being deleted after `patienceMs`.
   */
  note(volume: VolumeId, signal: AbortSignal, patienceMs?: number): Promise<'noted' | 'over' | 'deleting'>;
  /**
   * Blocks `note` for the volume until disposed. Resolves when engines have had time to list containers for earlier requests, or
   * at once if an engine deletes the volume, since it checks its own containers.
   */
  close(volume: VolumeId, isByEngine: boolean, signal: AbortSignal): Promise<Disposable>;
}

/** Docker takes milliseconds. If it first copies files into a new volume, it has the volume mounted, which counts as a use. */
const listingMs = 1_000;
/** Requests older than `listingMs` are dropped when there are this many. */
const mostKept = 1_000;

export function createPendingEngineRequests(clock: Clock): PendingEngineRequests {
  const last = new Map<VolumeId, number>();
  const closed = new Map<VolumeId, Promise<void>>();

  function forgetOld(): void {
    if (last.size < mostKept) return;
    const now = clock.elapsed();
    for (const [id, at] of last) if (now - at >= listingMs) last.delete(id);
  }

  return {
    note: async (id, signal, patienceMs = Number.POSITIVE_INFINITY) => {
      const end = closed.get(id);
      if (end === undefined) {
        forgetOld();
        last.set(id, clock.elapsed());
        return 'noted';
      }
      const over = unlessAborted(end, signal);
      if (patienceMs !== Number.POSITIVE_INFINITY && !(await endsWithin(over, patienceMs, clock))) return 'deleting';
      await over;
      return 'over';
    },
    close: async (id, isByEngine, signal) => {
      const end = Promise.withResolvers<void>();
      closed.set(id, end.promise);
      const open = (): void => {
        closed.delete(id);
        end.resolve();
      };
      try {
        const since = clock.elapsed() - (last.get(id) ?? Number.NEGATIVE_INFINITY);
        if (!isByEngine && since < listingMs) await clock.sleep(listingMs - since, signal);
      } catch (thrown) {
        open();
        throw thrown;
      }
      return { [Symbol.dispose]: open };
    },
  };
}
