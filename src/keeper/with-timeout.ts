import { unlessAborted } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';

/** Waits for the work until the signal aborts, and at most `ms`. */
export async function withTimeout<T>(work: Promise<T>, ms: number, clock: Clock, signal: AbortSignal): Promise<T> {
  using limit = clock.deadline(ms, signal);
  return await unlessAborted(work, limit.signal);
}
