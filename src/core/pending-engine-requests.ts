import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { endsWithin } from '#base/wait.ts';
import type { VolumeId } from './model.ts';

/**
 * What container engines have just asked for. An engine that makes a container asks for its volumes first, and lists the container a
 * moment later: in between nobody but us knows that somebody is about to name the volume.
 */
export interface PendingEngineRequests {
  /**
   * An engine is about to be told of it. Waits while it is being deleted, `over`: what is true has to be found out anew. `deleting`:
   * it is still, after as long as that.
   */
  note(volume: VolumeId, signal: AbortSignal, patienceMs?: number): Promise<'noted' | 'over' | 'deleting'>;
  /**
   * From now on, until disposed of, no engine is told of it. Resolves when those that were must have listed what they asked
   * for; at once for an engine that deletes it and looks after that by itself.
   */
  close(volume: VolumeId, isByEngine: boolean, signal: AbortSignal): Promise<Disposable>;
}

/** Docker takes milliseconds; what it copies into a new volume before is a mount, which counts by itself. */
const listingMs = 1_000;
/** Those of longer ago mean nothing any more. */
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
