// Imported, since looking up the global takes longer than reading the time.
import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';

/** The only source of time. */
export interface Clock {
  /** Wall-clock time in milliseconds since 1970. It can be set, and jump. */
  now(): number;
  /** Monotonic milliseconds since some moment that is the same for all processes of the machine. */
  elapsed(): number;
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  /** Calls `fire` once after `ms`, unless disposed of first. Does not keep the process alive. */
  after(ms: number, fire: () => void): Disposable;
  /** A signal that aborts with its parent or after `ms`, whichever comes first: it can narrow the parent's deadline, never extend it. */
  deadline(ms: number, parent: AbortSignal): Disposable & { readonly signal: AbortSignal };
}

/** The abort reason of a deadline, which distinguishes a timeout from a cancellation. */
export class DeadlineExceeded extends Error {
  override readonly name = 'DeadlineExceeded';
  readonly ms: number;
  constructor(ms: number) {
    super(`no answer within ${ms} ms`);
    this.ms = ms;
  }
}

/** performance.now() counts from the start of Node. */
const startedAt = Number(process.hrtime.bigint()) / 1e6 - performance.now();

export function systemClock(): Clock {
  const after: Clock['after'] = (ms, fire) => {
    const timer = setTimeout(fire, ms);
    timer.unref();
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  };
  return {
    now: () => Date.now(),
    elapsed: () => startedAt + performance.now(),
    sleep: async (ms, signal) => {
      // Not unref'ed: that would let the process exit in the middle of a back-off.
      await delay(ms, undefined, { signal });
    },
    after,
    deadline: (ms, parent) => deadlineBy(after, ms, parent),
  };
}

/** The implementation of `deadline`, shared by all clocks. */
export function deadlineBy(after: Clock['after'], ms: number, parent: AbortSignal): ReturnType<Clock['deadline']> {
  const controller = new AbortController();
  const limit = abortByDeadline(after, controller, parent, ms);
  return { signal: controller.signal, [Symbol.dispose]: () => limit[Symbol.dispose]() };
}

/** AbortSignal.any would be slower, and this runs for every request. */
export function abortByDeadline(
  after: Clock['after'],
  controller: AbortController,
  parent: AbortSignal,
  ms: number,
): Disposable {
  const stop = (): void => controller.abort(parent.reason);
  const timer = after(ms, () => controller.abort(new DeadlineExceeded(ms)));
  if (parent.aborted) stop();
  else parent.addEventListener('abort', stop, { once: true });
  return {
    [Symbol.dispose]: () => {
      timer[Symbol.dispose]();
      parent.removeEventListener('abort', stop);
    },
  };
}
