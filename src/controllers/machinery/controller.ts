import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { type Cache, type Handlers, keyOf } from './cache.ts';
import { type Again, codeOf, type Done, failureOf } from './outcome.ts';
import { createWorkQueue } from './work-queue.ts';

export interface ControllerCounts {
  readonly done: number;
  readonly again: number;
  readonly retried: number;
  readonly terminal: number;
  readonly waiting: number;
  readonly running: number;
  readonly delayed: number;
}

/** Reconciles keys. It is level-based: a key says what to look at, not what has changed. */
export interface Controller {
  readonly name: string;
  /** Enqueues a key now. */
  add(key: string): void;
  /** Enqueues the keys that a change in a cache concerns; by default the object's own key. Call it before `run`. */
  follow<T extends KubeObject>(cache: Cache<T>, keysOf?: (object: T) => Iterable<string>): void;
  counts(): ControllerCounts;
  /** Calls back with the duration of each reconcile. */
  onDuration(listener: (seconds: number) => void): void;
  /**
   * Starts when the caches that it follows are synced. After `stop` it finishes the running reconciles. The scope's signal aborts them
   * too.
   */
  run(scope: Scope, stop: AbortSignal): Promise<void>;
}

export interface ControllerOptions {
  readonly name: string;
  readonly clock: Clock;
  /** Never runs twice at a time for one key. The kind of error that it throws decides on the retry. */
  readonly reconcile: (key: string, scope: Scope) => Promise<Done | Again>;
  /** What a key may have to wait for, such as its store. Groups do not delay each other. */
  readonly groupOf?: (key: string) => string;
  /** Called with every error before the retry, to report Events. */
  readonly onFailure?: (key: string, error: unknown) => void;
  readonly workers?: number;
  readonly perGroup?: number;
  readonly firstRetryMs?: number;
  readonly maxRetryMs?: number;
  /** The approximate retry delay after terminal errors: nothing notifies the controller when a full disk has space again. */
  readonly terminalMs?: number;
  readonly random?: () => number;
}

export function createController(options: ControllerOptions): Controller {
  const { name, clock, reconcile, groupOf = () => '', onFailure, workers = 16, random = Math.random } = options;
  const { perGroup = Math.max(1, Math.ceil(workers / 2)), terminalMs = 900_000 } = options;
  const queue = createWorkQueue({
    clock,
    workers,
    perGroup,
    random,
    firstMs: options.firstRetryMs ?? 500,
    mostMs: options.maxRetryMs ?? 300_000,
  });
  const syncs: ((signal: AbortSignal) => Promise<void>)[] = [];
  const counts = { done: 0, again: 0, retried: 0, terminal: 0 };
  const add = (key: string): void => queue.add(key, groupOf(key));
  const timers = new Set<(seconds: number) => void>();

  async function outcome(key: string, scope: Scope): Promise<Outcome> {
    try {
      return await reconcile(key, scope);
    } catch (error) {
      return { ...failureOf(error, scope.signal), error };
    }
  }

  async function work(key: string, outer: Scope): Promise<void> {
    const scope = scopeOf(outer, { controller: name, key });
    const began = clock.elapsed();
    const verdict = await outcome(key, scope);
    for (const timer of timers) timer((clock.elapsed() - began) / 1_000);
    if ('error' in verdict && verdict.kind !== 'stopped') onFailure?.(key, verdict.error);
    switch (verdict.kind) {
      case 'done':
        counts.done++;
        return queue.forget(key);
      case 'again':
        counts.again++;
        queue.forget(key);
        return queue.addAfter(key, verdict.afterMs);
      case 'retry':
        counts.retried++;
        queue.retry(key, verdict.leastMs, groupOf(key));
        return scope.log.warn('reconcile failed, retrying', {
          failures: queue.failures(key),
          ...factsOf(verdict.error),
        });
      case 'terminal':
        counts.terminal++;
        queue.forget(key);
        queue.addAfter(key, terminalMs * (0.5 + random()));
        return scope.log.warn('reconcile failed, not retrying soon', factsOf(verdict.error));
      case 'stopped':
        return;
      default:
        return verdict satisfies never;
    }
  }

  return {
    name,
    add,
    follow: <T extends KubeObject>(cache: Cache<T>, keysOf: (object: T) => Iterable<string> = ownKey) => {
      const each = (object: T): void => {
        for (const key of keysOf(object)) add(key);
      };
      const handlers: Handlers<T> = {
        added: each,
        changed: (object, before) => {
          // The object may concern other keys than before.
          each(before);
          each(object);
        },
        deleted: each,
      };
      cache.on(handlers);
      syncs.push((signal) => cache.whenSynced(signal));
    },
    onDuration: (listener) => void timers.add(listener),
    counts: () => ({ ...counts, waiting: queue.waiting, running: queue.running, delayed: queue.delayed }),
    run: async (scope, stop) => {
      const either = AbortSignal.any([scope.signal, stop]);
      try {
        for (const synced of syncs) await synced(either);
      } catch (thrown) {
        if (either.aborted) return;
        throw thrown;
      }
      await queue.run(work, scope, stop);
    },
  };
}

/** Creates the log lazily: most reconciles log nothing. */
function scopeOf({ signal, log }: Scope, facts: Readonly<Record<string, string>>): Scope {
  let own: Scope['log'] | undefined;
  return {
    signal,
    get log() {
      own ??= log.with(facts);
      return own;
    },
  };
}

type Outcome = Done | Again | (ReturnType<typeof failureOf> & { readonly error: unknown });

const ownKey = (object: KubeObject): readonly string[] => [keyOf(object)];

const factsOf = (error: unknown): Readonly<Record<string, unknown>> => ({ code: codeOf(error), error });
