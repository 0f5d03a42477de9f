import type { Clock } from '#base/clock.ts';

/**
 * Requests that were there each time that data paths ended are begun one by one, and the journal says which: if this one ends too,
 * that one is to blame, and not all who waited meanwhile, on whatever mount.
 */
export interface PoisonRequests {
  /** Begins it in its turn. */
  add(place: number, begin: () => void): void;
  /** Not begun yet. */
  has(place: number): boolean;
  /** It was answered, or is not to be begun any more. */
  done(place: number): void;
}

/** A request that ends whoever works on it does so soon. One whose server is silent keeps the others waiting no longer. */
const eachMs = 1_000;

export function createPoisonRequests(clock: Clock, mark: (place: number | undefined) => void): PoisonRequests {
  const waiting = new Map<number, () => void>();
  let tried: number | undefined;
  let timer: Disposable | undefined;

  function next(): void {
    const [first] = waiting;
    tried = first?.[0];
    mark(tried);
    timer = undefined;
    if (first === undefined) return;
    waiting.delete(first[0]);
    timer = clock.after(eachMs, next);
    first[1]();
  }

  return {
    add: (place, begin) => {
      waiting.set(place, begin);
      // Those that are not suspected are begun before, and have their time.
      timer ??= clock.after(eachMs, next);
    },
    has: (place) => waiting.has(place),
    done: (place) => {
      waiting.delete(place);
      if (place !== tried) return;
      tried = undefined;
      mark(undefined);
      timer?.[Symbol.dispose]();
      timer = clock.after(0, next);
    },
  };
}
