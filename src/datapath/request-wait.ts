import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { Calls } from './calls.ts';

/**
 * Waits for work done for another request, under the same rules as a call to the server: interruptible, and EIO after
 * the `soft` timeout. The signal aborts when the requester stops waiting.
 */
export type RequestWait = <R>(request: Request, work: (signal: AbortSignal) => Promise<R>) => Promise<R>;

export interface RequestWaitParts {
  readonly clock: Clock;
  readonly calls: Pick<Calls, 'wait'>;
  /** Infinity is `hard`. */
  readonly timeoutMs: number;
}

export function createRequestWait({ clock, calls, timeoutMs }: RequestWaitParts): RequestWait {
  async function withTimeout<R>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<R>): Promise<R> {
    if (timeoutMs === Number.POSITIVE_INFINITY) return await work(signal);
    using limit = clock.deadline(timeoutMs, signal);
    return await work(limit.signal);
  }

  return async (request, work) => {
    try {
      return await calls.wait(request, (signal) => withTimeout(signal, work));
    } catch (cause) {
      throw cause instanceof Errno ? cause : new Errno('EIO', cause);
    }
  };
}
