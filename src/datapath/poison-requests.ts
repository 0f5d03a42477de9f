import type { Clock } from '#base/clock.ts';

/**
 * Requests that were present whenever a data path died are started one by one, and the journal records which: if this
 * process dies too, that request is to blame, not all that waited on any mount.
 */
export interface PoisonRequests {
  /** Queues a request; `begin` starts it in its turn. */
  add(place: number, start: () => void): void;
  /** Not started yet. */
  isWaiting(place: number): boolean;
  /** The request was answered or must no longer be started. */
  remove(place: number): void;
}

/** A poison request crashes its data path soon. One whose server is silent delays the others no longer than this. */
const maxTurnMs = 1_000;

export function createPoisonRequests(clock: Clock, setSuspect: (place: number | undefined) => void): PoisonRequests {
  const waiting = new Map<number, () => void>();
  let current: number | undefined;
  let timer: Disposable | undefined;

  function startNext(): void {
    const [first] = waiting;
    current = first?.[0];
    setSuspect(current);
    timer = undefined;
    if (first === undefined) return;
    waiting.delete(first[0]);
    timer = clock.after(maxTurnMs, startNext);
    first[1]();
  }

  return {
    add: (place, start) => {
      waiting.set(place, start);
      // Unsuspected requests are started first and get this time.
      timer ??= clock.after(maxTurnMs, startNext);
    },
    isWaiting: (place) => waiting.has(place),
    remove: (place) => {
      waiting.delete(place);
      if (place !== current) return;
      current = undefined;
      setSuspect(undefined);
      timer?.[Symbol.dispose]();
      timer = clock.after(0, startNext);
    },
  };
}
