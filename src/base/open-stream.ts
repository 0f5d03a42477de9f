import type { EventEmitter } from 'node:events';
import type { Clock } from './clock.ts';

export interface Opening<T> {
  readonly clock: Clock;
  /** For the beginning of it. */
  readonly limitMs: number;
  readonly open: (signal: AbortSignal) => Promise<T>;
  /** What is thrown in the place of what was, by the signal that `open` was given. */
  readonly failureOf: (thrown: unknown, signal: AbortSignal) => Error;
}

/** A stream that has a deadline for its beginning, and then takes as long as it takes, until the signal ends it or it ends. */
export async function opened<T extends EventEmitter>(opening: Opening<T>, signal: AbortSignal): Promise<T> {
  const { clock, limitMs, open, failureOf } = opening;
  const ended = new AbortController();
  const stop = (): void => ended.abort(signal.reason);
  using limit = clock.deadline(limitMs, signal);
  const late = (): void => ended.abort(limit.signal.reason);
  limit.signal.addEventListener('abort', late, { once: true });
  try {
    if (signal.aborted) stop();
    const stream = await open(ended.signal);
    signal.addEventListener('abort', stop, { once: true });
    stream.once('close', () => signal.removeEventListener('abort', stop));
    return stream;
  } catch (thrown) {
    throw failureOf(thrown, ended.signal);
  } finally {
    limit.signal.removeEventListener('abort', late);
  }
}
