import type { Clock } from '#base/clock.ts';
import type { Member } from './connection-limit.ts';
import type { Receiver } from './receiver.ts';

/** One connection, as far as the call goes that it is about to send. */
export interface Sending {
  readonly address: string;
  readonly member: Member;
  readonly receiver: Pick<Receiver, 'held' | 'isHalf' | 'records'>;
  /** Nothing is read from it at the moment, so that it is not to blame. */
  isPaused(): boolean;
  drop(why: string): void;
}

/**
 * Calls of which only a part has come, of all connections of a server: each must be whole in time, and all together may
 * hold so much memory. Beyond that, of the address that holds most, the connection goes that has been quiet longest: who
 * really sends is heard all the time. One on which no call has begun may stay for ever.
 */
export interface HalfCalls {
  admit(sending: Sending): Watched;
  /** Memory that is not needed at the moment shall be let go. */
  readonly isTight: boolean;
}

export interface Watched extends Disposable {
  /** To be called when something was received. */
  update(): void;
}

export interface HalfCallLimits {
  readonly bytes: number;
  readonly ms: number;
}

interface Entry {
  readonly sending: Sending;
  held: number;
  /** Which call was a half when it was last looked at; -1: none. */
  record: number;
  /** For how many looks it has been the same. */
  looks: number;
}

const looksInTime = 4;

export function createHalfCalls(clock: Clock, limits: HalfCallLimits): HalfCalls {
  const entries = new Set<Entry>();
  let held = 0;
  let isLooking = false;

  function lookLater(): void {
    isLooking = entries.size > 0;
    if (isLooking) clock.after(limits.ms / looksInTime, look);
  }

  function look(): void {
    for (const entry of entries) {
      const { receiver, isPaused, drop } = entry.sending;
      const record = receiver.isHalf && !isPaused() ? receiver.records : -1;
      entry.looks = record === entry.record ? entry.looks + 1 : 0;
      entry.record = record;
      if (record >= 0 && entry.looks >= looksInTime) drop('half a call came, and not the rest in time');
    }
    lookLater();
  }

  function count(entry: Entry, now: number): void {
    held += now - entry.held;
    entry.held = now;
  }

  /** False: there is none. */
  function dropOne(): boolean {
    const halves = [...entries].filter(({ sending, held: own }) => own > 0 && sending.receiver.isHalf);
    const byAddress = Map.groupBy(halves, ({ sending }) => sending.address);
    const sum = (some: readonly Entry[]): number => some.reduce((all, { held: own }) => all + own, 0);
    const [largest = []] = [...byAddress.values()].sort((a, b) => sum(b) - sum(a));
    const [quietest] = largest.toSorted((a, b) => a.sending.member.usedAt - b.sending.member.usedAt);
    if (quietest === undefined) return false;
    // Before it is told to go, which may take a moment.
    count(quietest, 0);
    entries.delete(quietest);
    quietest.sending.drop('too many calls of which only a half came');
    return true;
  }

  return {
    admit: (sending) => {
      const entry: Entry = { sending, held: 0, record: -1, looks: 0 };
      entries.add(entry);
      if (!isLooking) lookLater();
      return {
        update: () => {
          const now = sending.receiver.held;
          if (now === entry.held || !entries.has(entry)) return;
          count(entry, now);
          // The quietest may hold much less than what just came.
          while (held > limits.bytes && dropOne());
        },
        [Symbol.dispose]: () => {
          count(entry, 0);
          entries.delete(entry);
        },
      };
    },
    get isTight() {
      return held > limits.bytes / 4;
    },
  };
}
