import type { EventEmitter } from 'node:events';
import type { Clock } from './clock.ts';

export interface Opening<T> {
  readonly clock: Clock;
  /** The deadline for opening the stream. */
  readonly limitMs: number;
  readonly open: (signal: AbortSignal) => Promise<T>;
  /** Converts an error for the caller; the signal is the one that `open` got. */
  readonly failureOf: (thrown: unknown, signal: AbortSignal) => Error;
}

/** Opens a stream with a deadline for the opening only. Afterwards the stream lives until it ends or the signal is aborted. */
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
