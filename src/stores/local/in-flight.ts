/**
 * A disk that does not answer keeps each file call for ever, and with it one of the few threads that all stores share.
 * So each store has only so many places for its calls, and a call keeps its place until it really ends, however early
 * its caller gave up.
 *
 * Long calls have places of their own: scans that take minutes must not keep the short ones waiting. Whoever has a long
 * place may wait for a volume's name and for a short place, never the other way round: so nobody waits in a circle.
 */
export interface InFlight {
  readonly short: Places;
  readonly long: Places;
}

export interface Places {
  /** First come, first served. Who waits no longer than its signal leaves the line. */
  take(signal: AbortSignal): Promise<Disposable>;
  /** For who has a place: others have it during `work`, in which many wait for one call. Comes back before all who wait. */
  lend(work: () => Promise<void>): Promise<void>;
}

/** One file call at a time each. Fewer made 32 requests at once slower, more did not make them faster. */
export const shortCalls = 16;
const longCalls = 3;
/** File calls that one long call has under way at once. */
export const callsAtOnce = 4;
/** The most file calls that one store can have under way, whatever is asked of it. */
export const mostFileCalls = shortCalls + longCalls * callsAtOnce;

/** By device: several stores on one disk that does not answer hold no more than one would. */
export type InFlightOn = (device: bigint) => InFlight;

export function createInFlightByDevice(): InFlightOn {
  const disks = new Map<bigint, InFlight>();
  return (device) => {
    const known = disks.get(device) ?? createInFlight();
    disks.set(device, known);
    return known;
  };
}

const createInFlight = (): InFlight => ({ short: createPlaces(shortCalls), long: createPlaces(longCalls) });

export function createPlaces(count: number): Places {
  let free = count;
  const returning = new Set<() => void>();
  const line = new Set<() => void>();

  function leave(): void {
    const [next] = returning.size > 0 ? returning : line;
    if (next === undefined) free++;
    else next();
  }
  const place: Disposable = { [Symbol.dispose]: leave };

  async function enter(queue: Set<() => void>, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (free > 0) {
      free--;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const turn = (): void => {
      queue.delete(turn);
      resolve();
    };
    const stop = (): void => {
      queue.delete(turn);
      reject(signal?.reason);
    };
    queue.add(turn);
    signal?.addEventListener('abort', stop, { once: true });
    await promise.finally(() => signal?.removeEventListener('abort', stop));
  }

  return {
    take: async (signal) => {
      await enter(line, signal);
      return place;
    },
    lend: async (work) => {
      leave();
      try {
        await work();
      } finally {
        await enter(returning);
      }
    },
  };
}
