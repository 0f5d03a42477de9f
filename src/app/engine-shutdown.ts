import type { Clock } from '#base/clock.ts';

export interface EngineUse {
  readonly clock: Clock;
  /** Whether an engine still uses mounts of ours. */
  readonly hasVolumesInUse: () => boolean;
  /** Whether the engine has also told its other containers of ours (the keepers) to stop. */
  readonly isShuttingDown: () => boolean;
}

/** An engine stops all its containers at the same moment, but on a busy machine the signals may arrive up to a second apart. */
const maxSignalSkewMs = 1_000;
/** Less than the minute that Stowage's own container has. */
const maxWaitMs = 45_000;
const pollIntervalMs = 20;

/**
 * When an engine shuts down it stops all containers at once, and tells Stowage for each that ended that its volumes are no longer in use.
 * If Stowage does not answer, the engine retries for many seconds. So if the engine is shutting down, and not just this program, this
 * waits until all volumes are released: containers can write their last data, and everything gets unmounted. Returns at once if nothing is
 * in use.
 */
export async function waitForEngineShutdown(
  { clock, hasVolumesInUse, isShuttingDown }: EngineUse,
  signal: AbortSignal,
): Promise<void> {
  const began = clock.elapsed();
  let isKnownShutdown = false;
  while (hasVolumesInUse() && clock.elapsed() - began < (isKnownShutdown ? maxWaitMs : maxSignalSkewMs)) {
    isKnownShutdown ||= isShuttingDown();
    await clock.sleep(pollIntervalMs, signal);
  }
}
