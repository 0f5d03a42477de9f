import type { Clock } from '#base/clock.ts';
import { heartbeatOf } from './heartbeat.ts';

/**
 * Looked at so often, and may stand still so many times in a row. Looks are counted, not time: if this process, or the
 * whole machine, was stopped for a while, that is one look.
 */
const lookMs = 500;
const mostStill = 10;

export interface HangWatch extends Disposable {
  /** Somebody else beats from now on. */
  begin(): void;
}

export interface Watched {
  /** Asked when the heartbeat stands still: it will not beat again. */
  isDying(): boolean;
  /** Hears of each look whether the heartbeat has stood still for too long. */
  looked(hangs: boolean): void;
}

export function createHangWatch(journal: number, clock: Clock, { isDying, looked }: Watched): HangWatch {
  let beat = -1;
  let still = 0;
  let next: Disposable | undefined;

  function look(): void {
    next = clock.after(lookMs, look);
    const now = heartbeatOf(journal);
    still = now === beat ? still + 1 : 0;
    beat = now;
    const hangs = still >= mostStill || (still > 0 && isDying());
    if (hangs) still = 0;
    looked(hangs);
  }
  next = clock.after(lookMs, look);

  return {
    begin: () => {
      still = 0;
    },
    [Symbol.dispose]: () => next?.[Symbol.dispose](),
  };
}
