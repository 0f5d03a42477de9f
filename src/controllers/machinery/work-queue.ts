import { onAbort } from '#base/aborted.ts';
import { backOffDelay } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { createFairGroups, type FairGroups } from './fair-groups.ts';

/**
 * A queue of keys. Only one worker has a key at a time; a key that is added meanwhile runs again, once. Groups take turns, and no group can
 * have all workers, so a slow group delays only itself.
 */
export interface WorkQueue {
  /** Enqueues a key now, even if it was delayed. Moves it to the group, if given. */
  add(key: string, group?: string): void;
  /** Enqueues a key after a delay, unless it is due earlier. */
  addAfter(key: string, ms: number, group?: string): void;
  /** Enqueues a key after its backoff, which grows with each failure, but at least after `leastMs`. */
  retry(key: string, leastMs: number, group?: string): void;
  /** Resets the backoff of a key. */
  forget(key: string): void;
  /** The number of consecutive failures. */
  failures(key: string): number;
  /** The number of keys that are ready. */
  readonly waiting: number;
  readonly running: number;
  /** The number of keys that wait for a timer. */
  readonly delayed: number;
  /**
   * Runs the work until `stop`, then waits for the work in flight. The scope's signal also aborts the work. The work must not throw: an
   * error is logged, and the key is retried.
   */
  run(work: (key: string, scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

export interface WorkQueueOptions {
  readonly clock: Clock;
  /** The limit for all groups together. A group without a running key may always exceed it by one. */
  readonly workers: number;
  /** The limit for one group. */
  readonly workersPerGroup?: number;
  readonly firstMs?: number;
  readonly mostMs?: number;
  readonly random?: () => number;
}

interface Entry {
  group: string;
  state: 'idle' | 'waiting' | 'running';
  /** It was added while it was running. */
  isDirty: boolean;
  failures: number;
  timer: (Disposable & { readonly dueAt: number }) | undefined;
}

export function createWorkQueue(options: WorkQueueOptions): WorkQueue {
  const { clock, workers, workersPerGroup = workers, firstMs = 500, mostMs = 300_000, random = Math.random } = options;
  const entries = new Map<string, Entry>();
  const groups = createFairGroups({ workers, workersPerGroup });
  let delayed = 0;
  let wake: (() => void) | undefined;

  function entryOf(key: string, group: string | undefined): Entry {
    const known = entries.get(key);
    if (known === undefined) {
      const created: Entry = { group: group ?? '', state: 'idle', isDirty: false, failures: 0, timer: undefined };
      entries.set(key, created);
      return created;
    }
    if (group !== undefined && group !== known.group) regroup(key, known, group);
    return known;
  }

  function regroup(key: string, entry: Entry, group: string): void {
    const previous = entry.group;
    entry.group = group;
    if (entry.state !== 'waiting') return;
    groups.remove(previous, key);
    groups.add(group, key);
    wake?.();
  }

  function cancelTimer(entry: Entry): void {
    if (entry.timer === undefined) return;
    entry.timer[Symbol.dispose]();
    entry.timer = undefined;
    delayed--;
  }

  function add(key: string, group?: string): void {
    const entry = entryOf(key, group);
    cancelTimer(entry);
    if (entry.state === 'running') entry.isDirty = true;
    if (entry.state !== 'idle') return;
    entry.state = 'waiting';
    groups.add(entry.group, key);
    wake?.();
  }

  function addAfter(key: string, ms: number, group?: string): void {
    const entry = entryOf(key, group);
    const dueAt = clock.elapsed() + ms;
    if (entry.state === 'waiting' || (entry.timer !== undefined && entry.timer.dueAt <= dueAt)) return;
    cancelTimer(entry);
    const timer = clock.after(ms, () => add(key));
    entry.timer = { dueAt, [Symbol.dispose]: () => timer[Symbol.dispose]() };
    delayed++;
  }

  function finish(key: string, entry: Entry, group: string): void {
    groups.finish(group);
    entry.state = 'idle';
    if (entry.isDirty) {
      entry.isDirty = false;
      add(key);
    } else if (entry.timer === undefined && entry.failures === 0) entries.delete(key);
    wake?.();
  }

  const retry = (key: string, leastMs: number, group?: string): void => {
    const entry = entryOf(key, group);
    entry.failures++;
    addAfter(key, Math.max(leastMs, backOffDelay(entry.failures, { firstMs, maxMs: mostMs, random })), group);
  };

  async function runWork(
    { group, key }: NonNullable<ReturnType<FairGroups['take']>>,
    work: (key: string, scope: Scope) => Promise<void>,
    scope: Scope,
  ): Promise<void> {
    const entry = entryOf(key, undefined);
    entry.state = 'running';
    try {
      await work(key, scope);
    } catch (error) {
      if (!scope.signal.aborted) {
        scope.log.error('a worker failed', { key, error });
        retry(key, 0);
      }
    } finally {
      finish(key, entry, group);
    }
  }

  return {
    add,
    addAfter,
    retry,
    forget: (key) => {
      const entry = entries.get(key);
      if (entry === undefined) return;
      entry.failures = 0;
      if (entry.state === 'idle' && entry.timer === undefined) entries.delete(key);
    },
    failures: (key) => entries.get(key)?.failures ?? 0,
    get waiting() {
      return groups.waiting;
    },
    get running() {
      return groups.running;
    },
    get delayed() {
      return delayed;
    },
    run: async (work, scope, stop) => {
      const inFlight = new Set<Promise<void>>();
      const isOver = (): boolean => stop.aborted || scope.signal.aborted;
      const wakeUp = (): void => wake?.();
      using _stop = onAbort(stop, wakeUp);
      using _end = onAbort(scope.signal, wakeUp);
      try {
        while (!isOver()) {
          const { promise, resolve } = Promise.withResolvers<void>();
          wake = resolve;
          for (let next = groups.take(); next !== undefined; next = groups.take()) {
            const task: Promise<void> = runWork(next, work, scope).finally(() => inFlight.delete(task));
            inFlight.add(task);
          }
          if (!isOver()) await promise;
        }
        await Promise.all(inFlight);
      } finally {
        wake = undefined;
      }
    },
  };
}
