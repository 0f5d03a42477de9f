import type { Clock } from '#base/clock.ts';
import type { AdmittedConnection } from './connection-limit.ts';
import type { Receiver } from './receiver.ts';

/** One connection, as far as the call goes that it is about to send. */
export interface CallSource {
  readonly address: string;
  readonly member: AdmittedConnection;
  readonly receiver: Pick<Receiver, 'heldBytes' | 'isMidRecord' | 'records'>;
  /** Nothing is read from it at the moment, so that it is not to blame. */
  isPaused(): boolean;
  drop(why: string): void;
}

/**
 * Calls of which only a part has come, of all connections of a server: each must be whole in time, and all together may
 * hold so much memory. Beyond that, of the address that holds most, the connection goes that has been quiet longest: who
 * really sends is heard all the time. One on which no call has begun may stay for ever.
 */
export interface PartialCalls {
  admit(sending: CallSource): TrackedConnection;
  /** Memory that is not needed at the moment shall be let go. */
  readonly isMemoryLow: boolean;
}

export interface TrackedConnection extends Disposable {
  /** To be called when something was received. */
  update(): void;
}

export interface PartialCallLimits {
  readonly bytes: number;
  readonly ms: number;
}

interface Entry {
  readonly sending: CallSource;
  heldBytes: number;
  /** Which call was a half when it was last looked at; -1: none. */
  record: number;
  /** For how many looks it has been the same. */
  checks: number;
}

const checksPerTimeout = 4;

export function createPartialCalls(clock: Clock, limits: PartialCallLimits): PartialCalls {
  const entries = new Set<Entry>();
  let heldBytes = 0;
  let isScheduled = false;

  function scheduleCheck(): void {
    isScheduled = entries.size > 0;
    if (isScheduled) clock.after(limits.ms / checksPerTimeout, checkAll);
  }

  function checkAll(): void {
    for (const entry of entries) {
      const { receiver, isPaused, drop } = entry.sending;
      const record = receiver.isMidRecord && !isPaused() ? receiver.records : -1;
      entry.checks = record === entry.record ? entry.checks + 1 : 0;
      entry.record = record;
      if (record >= 0 && entry.checks >= checksPerTimeout) drop('half a call came, and not the rest in time');
    }
    scheduleCheck();
  }

  function count(entry: Entry, now: number): void {
    heldBytes += now - entry.heldBytes;
    entry.heldBytes = now;
  }

  /** False: there is none. */
  function evictOne(): boolean {
    const halves = [...entries].filter(({ sending, heldBytes: own }) => own > 0 && sending.receiver.isMidRecord);
    const byAddress = Map.groupBy(halves, ({ sending }) => sending.address);
    const sum = (some: readonly Entry[]): number => some.reduce((all, { heldBytes: own }) => all + own, 0);
    const [largest = []] = [...byAddress.values()].sort((a, b) => sum(b) - sum(a));
    const [quietest] = largest.toSorted((a, b) => a.sending.member.lastUse - b.sending.member.lastUse);
    if (quietest === undefined) return false;
    // Before it is told to go, which may take a moment.
    count(quietest, 0);
    entries.delete(quietest);
    quietest.sending.drop('too many calls of which only a half came');
    return true;
  }

  return {
    admit: (sending) => {
      const entry: Entry = { sending, heldBytes: 0, record: -1, checks: 0 };
      entries.add(entry);
      if (!isScheduled) scheduleCheck();
      return {
        update: () => {
          const now = sending.receiver.heldBytes;
          if (now === entry.heldBytes || !entries.has(entry)) return;
          count(entry, now);
          // The quietest may hold much less than what just came.
          while (heldBytes > limits.bytes && evictOne());
        },
        [Symbol.dispose]: () => {
          count(entry, 0);
          entries.delete(entry);
        },
      };
    },
    get isMemoryLow() {
      return heldBytes > limits.bytes / 4;
    },
  };
}
