import { waitAfter } from '#base/back-off.ts';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';

/**
 * Keys to be worked on. A key is with one worker at a time; whatever is said of it meanwhile makes it come again, once. Groups
 * take turns, and none of them can have all workers: one that is slow keeps only itself waiting.
 */
export interface WorkQueue {
  /** Now, also when it was to wait. It counts to the group that was said last. */
  add(key: string, group?: string): void;
  /** Then, unless it is to come earlier. */
  addAfter(key: string, ms: number, group?: string): void;
  /** After a wait that grows with each failure of this key, and is at least so long. */
  retry(key: string, leastMs: number, group?: string): void;
  /** What it failed before no longer counts. */
  forget(key: string): void;
  /** How often it has failed in a row. */
  failures(key: string): number;
  /** Those that could be worked on now. */
  readonly waiting: number;
  readonly running: number;
  /** Those that wait for a time. */
  readonly delayed: number;
  /**
   * Works until `stop`, then waits for what is under way. The scope's signal is for the work itself, and ends it. What is
   * thrown by the work is a fault: it is logged, and the key comes again.
   */
  run(work: (key: string, scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

export interface WorkQueueOptions {
  readonly clock: Clock;
  /** At a time, for all groups together; a group of which none is worked on may always have one beyond them. */
  readonly workers: number;
  /** At a time, for one group. */
  readonly perGroup?: number;
  readonly firstMs?: number;
  readonly mostMs?: number;
  readonly random?: () => number;
}

interface Entry {
  group: string;
  state: 'idle' | 'waiting' | 'running';
  /** Something was said of it while it was worked on. */
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
  /** In the order of their turns. */
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

  /** Of the group whose turn it is among those that may have one more; it is then the last in turn. */
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
      stop.addEventListener('abort', wakeUp);
      scope.signal.addEventListener('abort', wakeUp);
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
        stop.removeEventListener('abort', wakeUp);
        scope.signal.removeEventListener('abort', wakeUp);
      }
    },
  };
}
