import type { Clock } from '#base/clock.ts';

export interface EngineEnd {
  readonly clock: Clock;
  /** Whether an engine still has mounts of ours. */
  readonly isHeld: () => boolean;
  /** Whether its other containers of ours were told to end, too. */
  readonly isEnding: () => boolean;
}

/** An engine tells all its containers to end at the same moment, each by a process that a busy machine may start later than another. */
const sameMs = 1_000;
/** Less than the minute that Stowage's own container has. */
const longestMs = 45_000;
const lookMs = 20;

/**
 * An engine that ends tells all containers so at once, and us, when one has ended, that it no longer uses a volume. If
 * nobody is there to hear that, it tries again for many seconds. So when it is the engine that ends, and not just this program,
 * that is waited for: containers get to write what they have to, and all is unmounted. Returns at once where nothing is held.
 */
export async function engineReleased({ clock, isHeld, isEnding }: EngineEnd, signal: AbortSignal): Promise<void> {
  const began = clock.elapsed();
  let known = false;
  while (isHeld() && clock.elapsed() - began < (known ? longestMs : sameMs)) {
    known ||= isEnding();
    await clock.sleep(lookMs, signal);
  }
}
