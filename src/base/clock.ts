// The global of that name is looked up anew each time, which takes longer than to ask for the time.
import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';

/** The only source of time. */
export interface Clock {
  /** Milliseconds since 1970: what people call the time. It can be set, and jump. */
  now(): number;
  /** Milliseconds since some moment, the same for all processes of the machine: never jumps. */
  elapsed(): number;
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  /** Calls once, later, unless disposed of before. It keeps no process alive. */
  after(ms: number, fire: () => void): Disposable;
  /** A signal that ends with its parent or after `ms`, whichever comes first: a deadline narrows, it never widens. */
  deadline(ms: number, parent: AbortSignal): Disposable & { readonly signal: AbortSignal };
}

/** The reason a deadline's signal carries, so that a time-out can be told from a cancellation. */
export class DeadlineExceeded extends Error {
  override readonly name = 'DeadlineExceeded';
  readonly ms: number;
  constructor(ms: number) {
    super(`no answer within ${ms} ms`);
    this.ms = ms;
  }
}

/** Node counts from its own start. */
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
      // An unref'ed timer would let the process end in the middle of a back-off.
      await delay(ms, undefined, { signal });
    },
    after,
    deadline: (ms, parent) => deadlineBy(after, ms, parent),
  };
}

/** What `deadline` is made of, for clocks to share. */
export function deadlineBy(after: Clock['after'], ms: number, parent: AbortSignal): ReturnType<Clock['deadline']> {
  const controller = new AbortController();
  const limit = limited(after, controller, parent, ms);
  return { signal: controller.signal, [Symbol.dispose]: () => limit[Symbol.dispose]() };
}

/** By hand rather than with AbortSignal.any: this is on the way of every request. */
export function limited(
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
