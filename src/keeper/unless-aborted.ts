import type { Clock } from '#base/clock.ts';

/** Waits for the work until the signal aborts, then throws its reason. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  const { promise: stopped, reject } = Promise.withResolvers<never>();
  const stop = (): void => reject(signal.reason);
  signal.addEventListener('abort', stop, { once: true });
  try {
    return await Promise.race([work, stopped]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

/** The same, with a deadline of `ms`. */
export async function within<T>(work: Promise<T>, ms: number, clock: Clock, signal: AbortSignal): Promise<T> {
  using limit = clock.deadline(ms, signal);
  return await unlessAborted(work, limit.signal);
}
