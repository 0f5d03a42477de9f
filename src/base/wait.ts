import { onAbort } from './aborted.ts';
import type { Clock } from './clock.ts';

/** The caller stopped waiting; the work continues. */
export class StillRunning extends Error {
  override readonly name = 'StillRunning';
}

/** Work that respects the signal ends within this time after an abort. */
const graceMs = 2_000;

/**
 * Waits for the work, but not much longer than its signal. A system call on a disk or server that is gone does not respond to signals: the
 * caller gets an error, and the work keeps its locks until it really ends.
 */
export async function waitWithGrace<T>(work: Promise<T>, signal: AbortSignal, clock: Clock): Promise<T> {
  const { promise: timeout, reject } = Promise.withResolvers<never>();
  let grace: Disposable | undefined;
  const startGrace = (): void => {
    grace = clock.after(graceMs, () => reject(new StillRunning('stopped waiting', { cause: signal.reason })));
  };
  using _ = onAbort(signal, startGrace);
  try {
    return await Promise.race([work, timeout]);
  } finally {
    grace?.[Symbol.dispose]();
  }
}

/** Whether the work settled within that time, successfully or not. */
export async function endsWithin(work: Promise<unknown>, ms: number, clock: Clock): Promise<boolean> {
  const { promise: timeout, resolve } = Promise.withResolvers<false>();
  using _ = clock.after(ms, () => resolve(false));
  const ended = work.then(
    () => true,
    () => true,
  );
  return await Promise.race([ended, timeout]);
}
