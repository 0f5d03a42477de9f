import type { Clock } from '#base/clock.ts';

/** A timer cannot be set for longer. */
const longestMs = 24 * 3_600_000;

/** Until one of them; never throws. */
export async function sleepOrWake(clock: Clock, ms: number, wake: Promise<void>, signal: AbortSignal): Promise<void> {
  const woken = new AbortController();
  const stop = (): void => woken.abort();
  signal.addEventListener('abort', stop, { once: true });
  if (signal.aborted) stop();
  const slept = clock.sleep(Math.min(Math.max(ms, 0), longestMs), woken.signal).catch(() => undefined);
  await Promise.race([slept, wake]);
  signal.removeEventListener('abort', stop);
  stop();
  await slept;
}
