import type { EventEmitter } from 'node:events';
import { onAbort } from './aborted.ts';
import type { Clock } from './clock.ts';

export interface StreamOpening<T> {
  readonly clock: Clock;
  /** The deadline for opening the stream. */
  readonly limitMs: number;
  readonly open: (signal: AbortSignal) => Promise<T>;
  /** Converts an error for the caller; the signal is the one that `open` got. */
  readonly failureOf: (thrown: unknown, signal: AbortSignal) => Error;
}

/** Opens a stream with a deadline for the opening only. Afterwards the stream lives until it ends or the signal is aborted. */
export async function openStream<T extends EventEmitter>(opening: StreamOpening<T>, signal: AbortSignal): Promise<T> {
  const { clock, limitMs, open, failureOf } = opening;
  const ended = new AbortController();
  using limit = clock.deadline(limitMs, signal);
  using _ = onAbort(limit.signal, () => ended.abort(limit.signal.reason));
  try {
    const stream = await open(ended.signal);
    const stop = onAbort(signal, () => ended.abort(signal.reason));
    stream.once('close', () => stop[Symbol.dispose]());
    return stream;
  } catch (thrown) {
    throw failureOf(thrown, ended.signal);
  }
}
