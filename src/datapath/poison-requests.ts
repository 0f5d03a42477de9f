import type { Clock } from '#base/clock.ts';

/**
 * Requests that were present whenever a data path died are started one by one, and the journal records which: if this
 * process dies too, that request is to blame, not all that waited on any mount.
 */
export interface PoisonRequests {
  /** Queues a request; `begin` starts it in its turn. */
  add(place: number, begin: () => void): void;
  /** Not started yet. */
  has(place: number): boolean;
  /** The request was answered or must no longer be started. */
  done(place: number): void;
}

/** A poison request crashes its data path soon. One whose server is silent delays the others no longer than this. */
const eachMs = 1_000;

export function createPoisonRequests(clock: Clock, mark: (place: number | undefined) => void): PoisonRequests {
  const waiting = new Map<number, () => void>();
  let current: number | undefined;
  let timer: Disposable | undefined;

  function next(): void {
    const [first] = waiting;
    current = first?.[0];
    mark(current);
    timer = undefined;
    if (first === undefined) return;
    waiting.delete(first[0]);
    timer = clock.after(eachMs, next);
    first[1]();
  }

  return {
    add: (place, begin) => {
      waiting.set(place, begin);
      // Unsuspected requests are started first and get this time.
      timer ??= clock.after(eachMs, next);
    },
    has: (place) => waiting.has(place),
    done: (place) => {
      waiting.delete(place);
      if (place !== current) return;
      current = undefined;
      mark(undefined);
      timer?.[Symbol.dispose]();
      timer = clock.after(0, next);
    },
  };
}
