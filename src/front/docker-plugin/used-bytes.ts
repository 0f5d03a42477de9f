import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Core } from '#core/core.ts';
import type { Volume, VolumeId } from '#core/model.ts';

/**
 * Caches how many bytes volumes hold, so that calls need not wait. Measuring can mean a walk through all files of a volume, and engines ask
 * at every container start: a measurement that failed or took too long is not repeated for a while.
 */
export interface UsedBytes extends Disposable {
  usedBytesOf(volume: Volume): Promise<bigint | undefined>;
}

/** How long an engine's call waits for a measurement. A later result is used for the next call. */
const maxWaitMs = 10;
const measureTimeoutMs = 500;
const resultLifetimeMs = 30_000;
const retryAfterMs = 600_000;
const maxConcurrent = 2;
const maxEntries = 10_000;

interface Measurement {
  readonly bytes: bigint | undefined;
  /** By the monotonic clock: no new measurement before this time. */
  readonly until: number;
}

export function createUsedBytes(core: Core, clock: Clock, log: Log): UsedBytes {
  const known = new Map<VolumeId, Measurement>();
  const running = new Map<VolumeId, Promise<void>>();
  const ending = new AbortController();

  async function measure({ id }: Volume): Promise<void> {
    using limit = clock.deadline(measureTimeoutMs, ending.signal);
    const bytes = await core.volumes.usage(id, { signal: limit.signal, log }).then(
      (usage) => (usage.complete ? usage.bytes : undefined),
      () => undefined,
    );
    known.delete(id);
    known.set(id, { bytes, until: clock.elapsed() + (bytes === undefined ? retryAfterMs : resultLifetimeMs) });
    const [oldest] = known.keys();
    if (known.size > maxEntries && oldest !== undefined) known.delete(oldest);
  }

  function startMeasuring(volume: Volume): Promise<void> {
    const measurement = running.get(volume.id) ?? measure(volume).finally(() => running.delete(volume.id));
    running.set(volume.id, measurement);
    return measurement;
  }

  return {
    usedBytesOf: async (volume) => {
      const last = known.get(volume.id);
      if (last !== undefined && last.until > clock.elapsed()) return last.bytes;
      if (running.has(volume.id) || running.size < maxConcurrent)
        await endsWithin(startMeasuring(volume), maxWaitMs, clock);
      return known.get(volume.id)?.bytes;
    },
    [Symbol.dispose]: () => ending.abort(),
  };
}
