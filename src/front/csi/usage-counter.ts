import type { Clock } from '#base/clock.ts';
import { createLimiter, type Limiter } from '#base/limiter.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from '#core/errors.ts';
import type { Usage, Volume, VolumeId } from '#core/model.ts';
import type { Volumes } from '#core/volumes.ts';

/** How many bytes and files volumes hold. Stores count them in the background. */
export interface UsageCounter {
  /** The result of the last complete count; undefined if there is none. May start a count that continues after the return. */
  usageOf(volume: Volume): Promise<Usage | undefined>;
  /** Stops all counts. */
  end(): void;
}

export interface UsageCounterOptions {
  readonly volumes: Pick<Volumes, 'usageInBackground'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** A kubelet asks for all its volumes every minute. If a count takes longer than this, its result is returned the next time. */
const maxWaitMs = 5_000;
/** A count that takes longer is given up. */
const countTimeoutMs = 600_000;
/** After a slow count, wait this many times its duration before the next one, at most `maxPauseMs`. */
const [pauseFactor, maxPauseMs] = [4, 1_200_000];
/** Results expire after this time. It must be longer than a count and the pause before it. */
const resultLifetimeMs = 3_600_000;
const maxConcurrentPerStore = 4;

interface CountState {
  readonly counting?: Promise<void> | undefined;
  readonly last?: { readonly usage: Usage; readonly at: number } | undefined;
  /** By the monotonic clock; 0: at the next request. */
  readonly nextCountAt: number;
}

export function createUsageCounter({ volumes, clock, log }: UsageCounterOptions): UsageCounter {
  const ending = new AbortController();
  const counts = new Map<VolumeId, CountState>();
  const limiters = new Map<string, Limiter>();

  const isExpired = ({ last }: CountState): boolean =>
    last === undefined || clock.elapsed() - last.at > resultLifetimeMs;

  function limiterOf(store: string): Limiter {
    const limiter = limiters.get(store) ?? createLimiter(maxConcurrentPerStore);
    limiters.set(store, limiter);
    return limiter;
  }

  async function count(volume: Volume): Promise<void> {
    const began = clock.elapsed();
    const usage = await runCount(volume);
    const now = clock.elapsed();
    const took = now - began;
    const nextCountAt = took > maxWaitMs ? now + Math.min(took * pauseFactor, maxPauseMs) : 0;
    const last = usage?.complete === true ? { usage, at: now } : counts.get(volume.id)?.last;
    counts.set(volume.id, { nextCountAt, last });
    for (const [id, known] of counts)
      if (known.counting === undefined && known.nextCountAt < now && isExpired(known)) counts.delete(id);
  }

  async function runCount(volume: Volume): Promise<Usage | undefined> {
    try {
      using limit = clock.deadline(countTimeoutMs, ending.signal);
      return await volumes.usageInBackground(volume, { signal: limit.signal, log });
    } catch (thrown) {
      log.debug('counting the usage of a volume failed', { volume: volume.id, why: stowageError(thrown).message });
      return undefined;
    }
  }

  return {
    usageOf: async (volume) => {
      const before = counts.get(volume.id) ?? { nextCountAt: 0 };
      if (before.counting === undefined && before.nextCountAt <= clock.elapsed() && !ending.signal.aborted) {
        const counting = limiterOf(volume.store).run(() => count(volume));
        counts.set(volume.id, { ...before, counting });
      }
      const counting = counts.get(volume.id)?.counting;
      if (counting !== undefined) await endsWithin(counting, maxWaitMs, clock);
      const now = counts.get(volume.id);
      return now === undefined || isExpired(now) ? undefined : now.last?.usage;
    },
    end: () => ending.abort(),
  };
}
