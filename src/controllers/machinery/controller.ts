import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { KubeObject } from '#wire/kube/types.ts';
import { type Cache, type Handlers, keyOf } from './cache.ts';
import { codeOf, failureOf, type ReconcileDone, type RequeueAfter } from './outcome.ts';
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

/** Reconciles keys. It is level-based: a key names the object to reconcile, not what has changed. */
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
  /** Never runs twice at a time for one key. The error that it throws decides whether and when to retry. */
  readonly reconcile: (key: string, scope: Scope) => Promise<ReconcileDone | RequeueAfter>;
  /** The group of a key, such as its store. A slow group does not delay other groups. */
  readonly groupOf?: (key: string) => string;
  /** Called with every error before the retry, to report Events. */
  readonly onFailure?: (key: string, error: unknown) => void;
  readonly workers?: number;
  readonly workersPerGroup?: number;
  readonly firstRetryMs?: number;
  readonly maxRetryMs?: number;
  /** The approximate retry delay after terminal errors: nothing notifies the controller when a full disk has space again. */
  readonly terminalRetryMs?: number;
  readonly random?: () => number;
}

export function createController(options: ControllerOptions): Controller {
  const { name, clock, reconcile, groupOf = () => '', onFailure, workers = 16, random = Math.random } = options;
  const { workersPerGroup = Math.max(1, Math.ceil(workers / 2)), terminalRetryMs = 900_000 } = options;
  const queue = createWorkQueue({
    clock,
    workers,
    workersPerGroup,
    random,
    firstMs: options.firstRetryMs ?? 500,
    mostMs: options.maxRetryMs ?? 300_000,
  });
  const syncWaits: ((signal: AbortSignal) => Promise<void>)[] = [];
  const counts = { done: 0, again: 0, retried: 0, terminal: 0 };
  const add = (key: string): void => queue.add(key, groupOf(key));
  const durationListeners = new Set<(seconds: number) => void>();

  async function runReconcile(key: string, scope: Scope): Promise<Outcome> {
    try {
      return await reconcile(key, scope);
    } catch (error) {
      return { ...failureOf(error, scope.signal), error };
    }
  }

  async function reconcileKey(key: string, parent: Scope): Promise<void> {
    const scope = scopeOf(parent, { controller: name, key });
    const startedAt = clock.elapsed();
    const outcome = await runReconcile(key, scope);
    for (const timer of durationListeners) timer((clock.elapsed() - startedAt) / 1_000);
    if ('error' in outcome && outcome.kind !== 'stopped') onFailure?.(key, outcome.error);
    switch (outcome.kind) {
      case 'done':
        counts.done++;
        return queue.forget(key);
      case 'again':
        counts.again++;
        queue.forget(key);
        return queue.addAfter(key, outcome.afterMs);
      case 'retry':
        counts.retried++;
        queue.retry(key, outcome.leastMs, groupOf(key));
        return scope.log.warn('reconcile failed, retrying', {
          failures: queue.failures(key),
          ...logFieldsOf(outcome.error),
        });
      case 'terminal':
        counts.terminal++;
        queue.forget(key);
        queue.addAfter(key, terminalRetryMs * (0.5 + random()));
        return scope.log.warn('reconcile failed, not retrying soon', logFieldsOf(outcome.error));
      case 'stopped':
        return;
      default:
        return outcome satisfies never;
    }
  }

  return {
    name,
    add,
    follow: <T extends KubeObject>(cache: Cache<T>, keysOf: (object: T) => Iterable<string> = ownKey) => {
      const addKeysOf = (object: T): void => {
        for (const key of keysOf(object)) add(key);
      };
      const handlers: Handlers<T> = {
        added: addKeysOf,
        changed: (object, before) => {
          // The object may concern other keys than before.
          addKeysOf(before);
          addKeysOf(object);
        },
        deleted: addKeysOf,
      };
      cache.on(handlers);
      syncWaits.push((signal) => cache.whenSynced(signal));
    },
    onDuration: (listener) => void durationListeners.add(listener),
    counts: () => ({ ...counts, waiting: queue.waiting, running: queue.running, delayed: queue.delayed }),
    run: async (scope, stop) => {
      const stopOrAbort = AbortSignal.any([scope.signal, stop]);
      try {
        for (const synced of syncWaits) await synced(stopOrAbort);
      } catch (thrown) {
        if (stopOrAbort.aborted) return;
        throw thrown;
      }
      await queue.run(reconcileKey, scope, stop);
    },
  };
}

/** Creates the log lazily: most reconciles log nothing. */
function scopeOf({ signal, log }: Scope, fields: Readonly<Record<string, string>>): Scope {
  let childLog: Scope['log'] | undefined;
  return {
    signal,
    get log() {
      childLog ??= log.with(fields);
      return childLog;
    },
  };
}

type Outcome = ReconcileDone | RequeueAfter | (ReturnType<typeof failureOf> & { readonly error: unknown });

const ownKey = (object: KubeObject): readonly string[] => [keyOf(object)];

const logFieldsOf = (error: unknown): Readonly<Record<string, unknown>> => ({ code: codeOf(error), error });
