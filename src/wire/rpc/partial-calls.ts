import type { Clock } from '#base/clock.ts';
import type { AdmittedConnection } from './connection-limit.ts';
import type { Receiver } from './receiver.ts';

/** A connection that may be in the middle of sending a call. */
export interface CallSource {
  readonly address: string;
  readonly connection: AdmittedConnection;
  readonly receiver: Pick<Receiver, 'heldBytes' | 'isMidRecord' | 'records'>;
  /** The server has paused reading, so the client is not late. */
  isPaused(): boolean;
  drop(why: string): void;
}

/**
 * Limits calls that were received only in part, over all connections of a server: each must be complete in time, and all together
 * may hold a limited amount of memory. Beyond that the server drops a connection of the address that holds the most: the one that
 * has been idle the longest, since a client that makes progress sends all the time. A connection without a partial call may stay
 * idle for ever.
 */
export interface PartialCalls {
  add(source: CallSource): TrackedConnection;
  /** True: receivers should free memory that they do not need at the moment. */
  readonly isMemoryLow: boolean;
}

export interface TrackedConnection extends Disposable {
  /** Call it whenever bytes were received. */
  update(): void;
}

export interface PartialCallLimits {
  readonly bytes: number;
  readonly timeoutMs: number;
}

interface Entry {
  readonly source: CallSource;
  heldBytes: number;
  /** The number of the record that was incomplete at the last check; -1: none. */
  record: number;
  /** The number of checks in a row that found the same record. */
  checks: number;
}

const checksPerTimeout = 4;

export function createPartialCalls(clock: Clock, limits: PartialCallLimits): PartialCalls {
  const entries = new Set<Entry>();
  let heldBytes = 0;
  let isScheduled = false;

  function scheduleCheck(): void {
    isScheduled = entries.size > 0;
    if (isScheduled) clock.after(limits.timeoutMs / checksPerTimeout, checkAll);
  }

  function checkAll(): void {
    for (const entry of entries) {
      const { receiver, isPaused, drop } = entry.source;
      const record = receiver.isMidRecord && !isPaused() ? receiver.records : -1;
      entry.checks = record === entry.record ? entry.checks + 1 : 0;
      entry.record = record;
      if (record >= 0 && entry.checks >= checksPerTimeout) drop('the client did not complete a call in time');
    }
    scheduleCheck();
  }

  function setHeldBytes(entry: Entry, bytes: number): void {
    heldBytes += bytes - entry.heldBytes;
    entry.heldBytes = bytes;
  }

  /** Returns false if no connection is in the middle of a call. */
  function evictOne(): boolean {
    const partialEntries = [...entries].filter(
      ({ source: sending, heldBytes: own }) => own > 0 && sending.receiver.isMidRecord,
    );
    const byAddress = Map.groupBy(partialEntries, ({ source: sending }) => sending.address);
    const sum = (some: readonly Entry[]): number => some.reduce((all, { heldBytes: own }) => all + own, 0);
    const [largest = []] = [...byAddress.values()].sort((a, b) => sum(b) - sum(a));
    const [leastRecentlyUsed] = largest.toSorted(
      (a, b) => a.source.connection.lastUseNumber - b.source.connection.lastUseNumber,
    );
    if (leastRecentlyUsed === undefined) return false;
    // Update `heldBytes` first, since `drop` may close the connection later.
    setHeldBytes(leastRecentlyUsed, 0);
    entries.delete(leastRecentlyUsed);
    leastRecentlyUsed.source.drop('incomplete calls use too much memory');
    return true;
  }

  return {
    add: (source) => {
      const entry: Entry = { source: source, heldBytes: 0, record: -1, checks: 0 };
      entries.add(entry);
      if (!isScheduled) scheduleCheck();
      return {
        update: () => {
          const now = source.receiver.heldBytes;
          if (now === entry.heldBytes || !entries.has(entry)) return;
          setHeldBytes(entry, now);
          // The evicted connection may hold much less than what was just received, so evict again.
          while (heldBytes > limits.bytes && evictOne());
        },
        [Symbol.dispose]: () => {
          setHeldBytes(entry, 0);
          entries.delete(entry);
        },
      };
    },
    get isMemoryLow() {
      return heldBytes > limits.bytes / 4;
    },
  };
}
