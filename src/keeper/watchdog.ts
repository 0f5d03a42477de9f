import type { Clock } from '#base/clock.ts';
import { heartbeatOf } from './heartbeat.ts';

/**
 * Looked at so often, and may stand still so many times in a row. Looks are counted, not time: if this process, or the
 * whole machine, was stopped for a while, that is one look.
 */
const intervalMs = 500;
const maxMissedBeats = 10;

export interface Watchdog extends Disposable {
  /** Somebody else beats from now on. */
  reset(): void;
}

export interface WatchdogEvents {
  /** Asked when the heartbeat stands still: it will not beat again. */
  isDying(): boolean;
  /** Hears of each look whether the heartbeat has stood still for too long. */
  checked(hangs: boolean): void;
}

export function createWatchdog(journal: number, clock: Clock, { isDying, checked }: WatchdogEvents): Watchdog {
  let beat = -1;
  let missedBeats = 0;
  let next: Disposable | undefined;

  function check(): void {
    next = clock.after(intervalMs, check);
    const now = heartbeatOf(journal);
    missedBeats = now === beat ? missedBeats + 1 : 0;
    beat = now;
    const hangs = missedBeats >= maxMissedBeats || (missedBeats > 0 && isDying());
    if (hangs) missedBeats = 0;
    checked(hangs);
  }
  next = clock.after(intervalMs, check);

  return {
    reset: () => {
      missedBeats = 0;
    },
    [Symbol.dispose]: () => next?.[Symbol.dispose](),
  };
}
