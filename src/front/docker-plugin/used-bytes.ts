import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Core } from '#core/core.ts';
import type { Volume, VolumeId } from '#core/model.ts';

/**
 * How many bytes volumes hold, as far as it is known without anybody waiting. To find out can mean to walk through all of a
 * volume's files, and engines ask with every container that starts: what takes long is not asked for again for a while.
 */
export interface UsedBytes extends Disposable {
  of(volume: Volume): Promise<bigint | undefined>;
}

/** What an engine's call may wait for it. What comes later is told the next time. */
const waitMs = 10;
const measureMs = 500;
const freshMs = 30_000;
const retryAfterMs = 600_000;
const maxConcurrent = 2;
const maxEntries = 10_000;

interface Measurement {
  readonly bytes: bigint | undefined;
  /** By this process's clock: until then it is not asked for again. */
  readonly until: number;
}

export function createUsedBytes(core: Core, clock: Clock, log: Log): UsedBytes {
  const known = new Map<VolumeId, Measurement>();
  const running = new Map<VolumeId, Promise<void>>();
  const ending = new AbortController();

  async function measure({ id }: Volume): Promise<void> {
    using limit = clock.deadline(measureMs, ending.signal);
    const bytes = await core.volumes.usage(id, { signal: limit.signal, log }).then(
      (usage) => (usage.complete ? usage.bytes : undefined),
      () => undefined,
    );
    known.delete(id);
    known.set(id, { bytes, until: clock.elapsed() + (bytes === undefined ? retryAfterMs : freshMs) });
    const [oldest] = known.keys();
    if (known.size > maxEntries && oldest !== undefined) known.delete(oldest);
  }

  function startMeasuring(volume: Volume): Promise<void> {
    const begun = running.get(volume.id) ?? measure(volume).finally(() => running.delete(volume.id));
    running.set(volume.id, begun);
    return begun;
  }

  return {
    of: async (volume) => {
      const last = known.get(volume.id);
      if (last !== undefined && last.until > clock.elapsed()) return last.bytes;
      if (running.has(volume.id) || running.size < maxConcurrent)
        await endsWithin(startMeasuring(volume), waitMs, clock);
      return known.get(volume.id)?.bytes;
    },
    [Symbol.dispose]: () => ending.abort(),
  };
}
