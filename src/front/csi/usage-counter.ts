import type { Clock } from '#base/clock.ts';
import { createLimiter, type Limiter } from '#base/limiter.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from '#core/errors.ts';
import type { Usage, Volume, VolumeId } from '#core/model.ts';
import type { Volumes } from '#core/volumes.ts';

/** How much is in volumes, as their stores count it. */
export interface Counting {
  /** By the last count that came to its end, which may go on after this has answered. Undefined: it is not known. */
  of(volume: Volume): Promise<Usage | undefined>;
  /** Ends what is being counted. */
  end(): void;
}

export interface CountingParts {
  readonly volumes: Pick<Volumes, 'usageInBackground'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** A kubelet asks for all of its volumes every minute: what takes longer to count than this is told the next time. */
const waitMs = 5_000;
/** What takes longer than this cannot be counted. */
const countMs = 600_000;
/** What took long is left alone for so many times as long, and no longer than that. */
const [restTimes, mostRestMs] = [4, 1_200_000];
/** What was counted longer ago says nothing any more. More than a count and the rest before it. */
const knownMs = 3_600_000;
/** On one store. */
const atOnce = 4;

interface Known {
  readonly counting?: Promise<void> | undefined;
  readonly last?: { readonly usage: Usage; readonly at: number } | undefined;
  /** Not counted again before. */
  readonly restsUntil: number;
}

export function createCounting({ volumes, clock, log }: CountingParts): Counting {
  const ending = new AbortController();
  const counts = new Map<VolumeId, Known>();
  const limiters = new Map<string, Limiter>();

  const isOld = ({ last }: Known): boolean => last === undefined || clock.elapsed() - last.at > knownMs;

  function limiterOf(store: string): Limiter {
    const limiter = limiters.get(store) ?? createLimiter(atOnce);
    limiters.set(store, limiter);
    return limiter;
  }

  async function count(volume: Volume): Promise<void> {
    const began = clock.elapsed();
    const usage = await counted(volume);
    const now = clock.elapsed();
    const took = now - began;
    const restsUntil = took > waitMs ? now + Math.min(took * restTimes, mostRestMs) : 0;
    const last = usage?.complete === true ? { usage, at: now } : counts.get(volume.id)?.last;
    counts.set(volume.id, { restsUntil, last });
    for (const [id, known] of counts)
      if (known.counting === undefined && known.restsUntil < now && isOld(known)) counts.delete(id);
  }

  /** Undefined: it could not be. */
  async function counted(volume: Volume): Promise<Usage | undefined> {
    try {
      using limit = clock.deadline(countMs, ending.signal);
      return await volumes.usageInBackground(volume, { signal: limit.signal, log });
    } catch (thrown) {
      log.debug('a volume could not be counted', { volume: volume.id, why: stowageError(thrown).message });
      return undefined;
    }
  }

  return {
    of: async (volume) => {
      const before = counts.get(volume.id) ?? { restsUntil: 0 };
      if (before.counting === undefined && before.restsUntil <= clock.elapsed() && !ending.signal.aborted) {
        const counting = limiterOf(volume.store).run(() => count(volume));
        counts.set(volume.id, { ...before, counting });
      }
      const counting = counts.get(volume.id)?.counting;
      if (counting !== undefined) await endsWithin(counting, waitMs, clock);
      const now = counts.get(volume.id);
      return now === undefined || isOld(now) ? undefined : now.last?.usage;
    },
    end: () => ending.abort(),
  };
}
