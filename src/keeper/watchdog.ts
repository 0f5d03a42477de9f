import type { Clock } from '#base/clock.ts';
import { heartbeatOf } from './heartbeat.ts';

/**
 * Check interval, and how many checks in a row the heartbeat may stand still. Checks are counted instead of time: if
 * this process or the whole machine was stopped for a while, that is one check.
 */
const intervalMs = 500;
const maxMissedBeats = 10;

export interface Watchdog extends Disposable {
  /** Another data path beats from now on. */
  reset(): void;
}

export interface WatchdogEvents {
  /** Called when the heartbeat stands still. True: it will not beat again. */
  isDying(): boolean;
  /** Called after each check. `hangs`: it stood still for too long, or will not beat again. */
  checked(hangs: boolean): void;
}

export function createWatchdog(journal: number, clock: Clock, { isDying, checked }: WatchdogEvents): Watchdog {
  let lastBeat = -1;
  let missedBeats = 0;
  let timer: Disposable | undefined;

  function check(): void {
    timer = clock.after(intervalMs, check);
    const currentBeat = heartbeatOf(journal);
    missedBeats = currentBeat === lastBeat ? missedBeats + 1 : 0;
    lastBeat = currentBeat;
    const hangs = missedBeats >= maxMissedBeats || (missedBeats > 0 && isDying());
    if (hangs) missedBeats = 0;
    checked(hangs);
  }
  timer = clock.after(intervalMs, check);

  return {
    reset: () => {
      missedBeats = 0;
    },
    [Symbol.dispose]: () => timer?.[Symbol.dispose](),
  };
}
