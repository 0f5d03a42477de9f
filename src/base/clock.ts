import { setTimeout as delay } from 'node:timers/promises';

/** The only source of time. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number;
  sleep(ms: number, signal: AbortSignal): Promise<void>;
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

export function systemClock(): Clock {
  return {
    now: () => Date.now(),
    sleep: async (ms, signal) => {
      // An unref'ed timer would let the process end in the middle of a back-off.
      await delay(ms, undefined, { signal });
    },
    deadline: (ms, parent) => {
      const limit = new AbortController();
      const timer = setTimeout(() => limit.abort(new DeadlineExceeded(ms)), ms);
      timer.unref();
      return {
        signal: AbortSignal.any([parent, limit.signal]),
        [Symbol.dispose]: () => clearTimeout(timer),
      };
    },
  };
}
