import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import { StillRunning, waitWithGrace } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { MountTable } from './mountinfo.ts';

/** Runs file system work on a path whose disk or server may not answer. */
export type PathAccess = <T>(
  at: { readonly path: string; readonly table: MountTable; readonly signal: AbortSignal },
  work: () => Promise<T>,
) => Promise<T>;

/** Work on a path takes microseconds, or blocks until its server returns. */
const accessTimeoutMs = 15_000;

/** Work that hangs occupies one of the four threads that Node has for all file access; one must stay free. */
const maxConcurrentWork = 3;

/**
 * Runs one piece of work at a time for each mount, and at most three in all. So a dead server occupies one thread, however often callers
 * retry, and does not delay work on other mounts. On a deadline the caller gets an error; the work keeps its slot until the kernel
 * returns.
 */
export function createPathAccess(clock: Clock): PathAccess {
  const mounts = createKeyedLock();
  const takeSlot = createSlots(maxConcurrentWork);
  return async ({ path, table, signal }, work) => {
    using limit = clock.deadline(accessTimeoutMs, signal);
    let hasCallerLeft = false;
    try {
      using turn = new DisposableStack();
      turn.use(await mounts.hold([table.mountContaining(path)?.at ?? '/'], limit.signal));
      turn.use(await takeSlot(limit.signal));
      const working = work();
      const heldTurn = turn.move();
      void working
        .then(
          (found) => (hasCallerLeft ? disposeResult(found) : undefined),
          () => undefined,
        )
        .catch(() => undefined)
        .finally(() => heldTurn[Symbol.dispose]());
      return await waitWithGrace(working, limit.signal, clock);
    } catch (cause) {
      hasCallerLeft = true;
      const hasGivenUp = cause instanceof StillRunning || cause === limit.signal.reason;
      if (!hasGivenUp) throw cause;
      const { reason } = limit.signal;
      throw reason instanceof DeadlineExceeded ? noAnswer(path, reason) : reason;
    }
  };
}

/** Releases the result of work whose caller has given up. */
async function disposeResult(found: unknown): Promise<void> {
  if (typeof found === 'object' && found !== null && Symbol.asyncDispose in found)
    await (found as AsyncDisposable)[Symbol.asyncDispose]();
}

function createSlots(count: number): (signal: AbortSignal) => Promise<Disposable> {
  let free = count;
  const waiting = new Set<() => void>();
  const release = (): void => {
    const [next] = waiting;
    if (next === undefined) free++;
    else if (waiting.delete(next)) next();
  };
  return async (signal) => {
    signal.throwIfAborted();
    if (free > 0) free--;
    else {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      waiting.add(resolve);
      using _ = onAbort(signal, () => {
        waiting.delete(resolve);
        reject(signal.reason);
      });
      await promise;
    }
    return { [Symbol.dispose]: release };
  };
}

function noAnswer(path: string, cause: Error): StowageError {
  return new StowageError(`${path} cannot be accessed: its disk or server does not answer`, {
    code: 'unavailable',
    reason: 'path-no-answer',
    action: `Restore the server, or unmount its mount (to find it: findmnt -T ${path}), then retry.`,
    cause,
  });
}
