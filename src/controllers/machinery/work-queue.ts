import { onAbort } from '#base/aborted.ts';
import { waitAfter } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';

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
   * Runs the work until `stop`, then waits for what is in flight. The scope's signal also aborts the work. The work must not throw: an
   * error is logged, and the key is retried.
   */
  run(work: (key: string, scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

export interface WorkQueueOptions {
  readonly clock: Clock;
  /** The limit for all groups together. A group without a running key may always exceed it by one. */
  readonly workers: number;
  /** The limit for one group. */
  readonly perGroup?: number;
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
  timer: (Disposable & { readonly at: number }) | undefined;
}

interface Group {
  readonly waiting: Set<string>;
  running: number;
}

export function createWorkQueue(options: WorkQueueOptions): WorkQueue {
  const { clock, workers, perGroup = workers, firstMs = 500, mostMs = 300_000, random = Math.random } = options;
  const entries = new Map<string, Entry>();
  /** In round-robin order. */
  const groups = new Map<string, Group>();
  let delayed = 0;
  let running = 0;
  let wake: (() => void) | undefined;

  function entryOf(key: string, group: string | undefined): Entry {
    const known = entries.get(key);
    if (known === undefined) {
      const made: Entry = { group: group ?? '', state: 'idle', isDirty: false, failures: 0, timer: undefined };
      entries.set(key, made);
      return made;
    }
    if (group !== undefined && group !== known.group) regroup(key, known, group);
    return known;
  }

  function groupOf(name: string): Group {
    const known = groups.get(name);
    if (known !== undefined) return known;
    const made: Group = { waiting: new Set(), running: 0 };
    groups.set(name, made);
    return made;
  }

  const dropIfEmpty = (name: string, group: Group): void => {
    if (group.waiting.size === 0 && group.running === 0) groups.delete(name);
  };

  function regroup(key: string, entry: Entry, group: string): void {
    const isWaiting = entry.state === 'waiting';
    const before = groupOf(entry.group);
    if (isWaiting) before.waiting.delete(key);
    dropIfEmpty(entry.group, before);
    entry.group = group;
    if (!isWaiting) return;
    groupOf(group).waiting.add(key);
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
    groupOf(entry.group).waiting.add(key);
    wake?.();
  }

  function addAfter(key: string, ms: number, group?: string): void {
    const entry = entryOf(key, group);
    const at = clock.elapsed() + ms;
    if (entry.state === 'waiting' || (entry.timer !== undefined && entry.timer.at <= at)) return;
    cancelTimer(entry);
    const timer = clock.after(ms, () => add(key));
    entry.timer = { at, [Symbol.dispose]: () => timer[Symbol.dispose]() };
    delayed++;
  }

  /** Takes a key of the next group that may run one more, and moves that group to the end. */
  function take(): { readonly key: string; readonly entry: Entry; readonly group: Group } | undefined {
    for (const [name, group] of groups) {
      const mayRun = group.running === 0 || (running < workers && group.running < perGroup);
      const [key] = group.waiting;
      const entry = key === undefined ? undefined : entries.get(key);
      if (!mayRun || key === undefined || entry === undefined) continue;
      group.waiting.delete(key);
      groups.delete(name);
      groups.set(name, group);
      return { key, entry, group };
    }
    return undefined;
  }

  function finish(key: string, entry: Entry, name: string, group: Group): void {
    running--;
    group.running--;
    dropIfEmpty(name, group);
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
    addAfter(key, Math.max(leastMs, waitAfter(entry.failures, { firstMs, mostMs, random })), group);
  };

  async function runOne(
    { key, entry, group }: NonNullable<ReturnType<typeof take>>,
    work: (key: string, scope: Scope) => Promise<void>,
    scope: Scope,
  ): Promise<void> {
    const name = entry.group;
    entry.state = 'running';
    group.running++;
    running++;
    try {
      await work(key, scope);
    } catch (error) {
      if (!scope.signal.aborted) {
        scope.log.error('a worker failed', { key, error });
        retry(key, 0);
      }
    } finally {
      finish(key, entry, name, group);
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
      let all = 0;
      for (const group of groups.values()) all += group.waiting.size;
      return all;
    },
    get running() {
      return running;
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
          for (let next = take(); next !== undefined; next = take()) {
            const one: Promise<void> = runOne(next, work, scope).finally(() => inFlight.delete(one));
            inFlight.add(one);
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
