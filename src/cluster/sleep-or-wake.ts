import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';

/** Below the longest delay of a Node timer. */
const longestMs = 24 * 3_600_000;

/** Waits for the time, `wake` or the signal, whichever is first. Never throws. */
export async function sleepOrWake(clock: Clock, ms: number, wake: Promise<void>, signal: AbortSignal): Promise<void> {
  const woken = new AbortController();
  using _ = onAbort(signal, () => woken.abort());
  const slept = clock.sleep(Math.min(Math.max(ms, 0), longestMs), woken.signal).catch(() => undefined);
  await Promise.race([slept, wake]);
  woken.abort();
  await slept;
}
