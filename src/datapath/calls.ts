import type { Clock } from '#base/clock.ts';
import { Errno } from '#wire/fuse/errno.ts';
import type { Request } from '#wire/fuse/operations.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { isTransient } from './errors.ts';

/** Calls to the server on behalf of FUSE requests: their deadline, retries and interruption. */
export interface Calls {
  call<R>(request: Request, credential: Buffer, call: (options: CallOptions) => Promise<R>): Promise<R>;
  /** For work that waits for calls of other requests. The signal aborts when the requester stops waiting. */
  wait<R>(request: Request, work: (signal: AbortSignal) => Promise<R>): Promise<R>;
}

export interface CallsOptions {
  readonly clock: Clock;
  /** Infinity is `hard`: waits forever. Otherwise `soft`: EIO after this time. */
  readonly timeoutMs: number;
  /** Aborts when the mount is gone: all calls are cancelled, and no new ones start. */
  readonly mountEnded?: AbortSignal | undefined;
}

interface PendingCall {
  readonly request: Request;
  readonly startedAt: number;
  readonly controller: AbortController;
}

/**
 * The kernel reports every signal that reaches a waiting process, including handled ones. Programs do not expect EINTR
 * from file operations, and some runtimes signal themselves all the time. So only a request that was interrupted and
 * has waited this long ends with EINTR.
 */
const graceMs = 1_000;
const interruptCheckMs = 250;
const minPauseMs = 100;
const maxPauseMs = 5_000;

export function createCalls({ clock, timeoutMs, mountEnded }: CallsOptions): Calls {
  const pendingCalls = new Set<PendingCall>();
  let isTimerSet = false;
  let isOver = false;
  mountEnded?.addEventListener('abort', cancelAll, { once: true });

  function cancelAll(): void {
    isOver = true;
    for (const { controller } of pendingCalls) controller.abort(new Errno('EINTR'));
  }

  function interruptWaiting(): void {
    isTimerSet = pendingCalls.size > 0;
    const now = clock.elapsed();
    for (const { request, startedAt: since, controller } of pendingCalls)
      if (now - since >= graceMs && request.signal.aborted) controller.abort(new Errno('EINTR'));
    if (isTimerSet) clock.after(interruptCheckMs, interruptWaiting);
  }

  function addPendingCall(request: Request): PendingCall {
    const waiting: PendingCall = { request, startedAt: clock.elapsed(), controller: new AbortController() };
    pendingCalls.add(waiting);
    if (!isTimerSet) clock.after(interruptCheckMs, interruptWaiting);
    isTimerSet = true;
    if (isOver) waiting.controller.abort(new Errno('EINTR'));
    return waiting;
  }

  /** Retries while the server is unreachable or answers JUKEBOX. */
  async function retry<R>(
    waiting: PendingCall,
    options: CallOptions,
    call: (options: CallOptions) => Promise<R>,
    firstCause: unknown,
  ): Promise<R> {
    let cause = firstCause;
    for (let pause = minPauseMs; isTransient(cause); pause = Math.min(pause * 2, maxPauseMs)) {
      const remainingMs = timeoutMs - (clock.elapsed() - waiting.startedAt) - pause;
      if (remainingMs <= 0) break;
      await clock.sleep(pause, waiting.controller.signal).catch((stopped: unknown) => {
        throw new Errno('EINTR', stopped);
      });
      try {
        return await call({ ...options, deadlineMs: remainingMs });
      } catch (next) {
        cause = next;
      }
    }
    throw cause;
  }

  return {
    call: (request, credential, call) => {
      const waiting = addPendingCall(request);
      const options: CallOptions = { credential, deadlineMs: timeoutMs, signal: waiting.controller.signal };
      return call(options).then(
        (result) => {
          pendingCalls.delete(waiting);
          return result;
        },
        (cause: unknown) => retry(waiting, options, call, cause).finally(() => pendingCalls.delete(waiting)),
      );
    },
    wait: (request, work) => {
      const waiting = addPendingCall(request);
      return work(waiting.controller.signal).finally(() => pendingCalls.delete(waiting));
    },
  };
}
