import { onAbort } from '#base/aborted.ts';
import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { errorCodes } from './error-codes.ts';
import { canceled, StowageError, stowageError } from './errors.ts';
import type { Operation, OperationId } from './model.ts';
import { EndedOnRecord, type OperationRunner, type RunningOperation, ShuttingDown } from './operation-runner.ts';
import type { Outcome, Work } from './operation-work.ts';
import type { Records } from './ports.ts';

/** How to replay an operation that a crash interrupted. */
export interface Replay {
  /** The locks, held until the operation ends, so that no request runs between its attempts. */
  readonly keys: readonly string[];
  /** The deadline of each attempt. */
  readonly deadlineMs?: number;
  /** Do not retry after a temporary failure. */
  readonly once?: boolean;
  work(scope: Work): Promise<Outcome<unknown>>;
  /** Replaces `work` in the attempt that `resume` waits for. */
  readonly firstWork?: (scope: Work) => Promise<Outcome<unknown>>;
}

export interface Replays {
  /**
   * Returns when the operation has ended, or when its first attempt failed temporarily; then it is retried in the background until it
   * ends. Throws after a permanent failure. If its locks are not free, the replay runs in the background from the start.
   */
  resume(operation: Operation, scope: Scope, replay: Replay): Promise<void>;
  /** Why the last attempt failed. Undefined: an attempt is running, or there is no such replay. */
  refusal(id: OperationId): StowageError | undefined;
  /** Cancels a replay that waits for its locks. False: there is no such replay. */
  cancel(id: OperationId): boolean;
  /** Locks the keys. Waits a bounded time for a replay that holds them, then throws 'busy' with the name of its operation. */
  lock(keys: readonly string[], signal: AbortSignal): Promise<Disposable>;
  /** The store was opened: retries its operations at once. */
  wake(store: string): void;
  /** Ends all waiting. The operations stay on record for the next start. */
  stop(): void;
}

interface PendingReplay {
  readonly operation: Operation;
  readonly keys: ReadonlySet<string>;
  refused: StowageError | undefined;
  /** Aborted if the operation is cancelled before it has its locks. */
  readonly waiting: AbortController;
  wake(): void;
}

const attemptMs = 120_000;
const [firstBackoffMs, mostBackoffMs] = [1_000, 60_000];
/** How long a request waits for a replay. Queue workers wait here too, and an unreachable store must not block all of them. */
const lockPatienceMs = 10_000;
const unending = new AbortController().signal;

export function createReplays(parts: {
  readonly locks: KeyedLock;
  readonly perform: OperationRunner;
  readonly running: ReadonlyMap<OperationId, RunningOperation>;
  readonly records: Pick<Records, 'operations'>;
  readonly clock: Clock;
  readonly log: Log;
}): Replays {
  const { locks, perform, running, records, clock, log } = parts;
  const pending = new Map<OperationId, PendingReplay>();
  const stopping = new AbortController();

  async function attempt(replay: Replay, isFirst: boolean, work: Work, scope: Scope): Promise<Outcome<unknown>> {
    using limit = clock.deadline(replay.deadlineMs ?? attemptMs, AbortSignal.any([work.signal, scope.signal]));
    const { signal } = limit;
    const doing = (isFirst && replay.firstWork) || replay.work;
    try {
      return await doing({ ...work, signal });
    } catch (thrown) {
      if (thrown instanceof EndedOnRecord) throw thrown;
      throw signal.aborted && signal.reason instanceof Error ? stowageError(signal.reason) : stowageError(thrown);
    }
  }

  /** Ends early if the store is opened. */
  async function backoff(one: PendingReplay, ms: number, signal: AbortSignal): Promise<'over' | 'woken'> {
    const { promise, resolve, reject } = Promise.withResolvers<'over' | 'woken'>();
    using _timer = clock.after(ms, () => resolve('over'));
    one.wake = () => resolve('woken');
    using _ = onAbort(signal, () => reject(signal.reason));
    return await promise;
  }

  async function untilAnswered(
    one: PendingReplay,
    replay: Replay,
    work: Work,
    first: { readonly scope: Scope; readonly isAwaited: boolean; readonly refused: () => void },
  ): Promise<Outcome<unknown>> {
    const { id, kind, subject } = one.operation;
    let waitMs = firstBackoffMs;
    for (let number = 1; ; number++) {
      const isFirst = number === 1 && first.isAwaited;
      try {
        return await attempt(replay, isFirst, work, isFirst ? first.scope : { ...work, signal: unending });
      } catch (thrown) {
        if (thrown instanceof EndedOnRecord) throw thrown;
        const failure = stowageError(thrown);
        if (replay.once === true || work.signal.aborted || !errorCodes[failure.code].retry) throw failure;
        one.refused = failure;
        if (number === 1)
          log.warn('an interrupted operation cannot be finished now and is retried', {
            operation: id,
            kind,
            subject,
            why: failure.message,
            action: failure.action,
          });
        first.refused();
        // Stowage is stopping, so the next attempt is after the next start.
        if (stopping.signal.aborted) running.get(id)?.controller.abort(stopping.signal.reason);
      }
      waitMs =
        (await backoff(one, waitMs, work.signal)) === 'woken' ? firstBackoffMs : Math.min(waitMs * 2, mostBackoffMs);
      // The store was removed, or has another location now.
      if (records.operations.get(id)?.state !== 'running') throw new EndedOnRecord(id);
      one.refused = undefined;
    }
  }

  async function run(one: PendingReplay, replay: Replay, first: Parameters<typeof untilAnswered>[3]): Promise<void> {
    using held = await locks
      .hold(replay.keys, AbortSignal.any([stopping.signal, one.waiting.signal]))
      .catch((thrown: unknown) => {
        if (!one.waiting.signal.aborted) throw thrown;
        return undefined;
      });
    await perform(one.operation, { signal: unending, log }, undefined, async (work) => {
      if (held === undefined) throw canceled();
      return await untilAnswered(one, replay, work, first);
    });
  }

  /** The operation that holds one of the keys; otherwise one that waits for them. */
  function holder(keys: readonly string[]): PendingReplay | undefined {
    const those = [...pending.values()].filter((one) => keys.some((key) => one.keys.has(key)));
    return those.find(({ operation }) => running.has(operation.id)) ?? those[0];
  }

  return {
    resume: async (operation, scope, replay) => {
      // A store that is reopened at run time can still have a replay in progress.
      if (pending.has(operation.id) || running.has(operation.id)) return;
      const one: PendingReplay = {
        operation,
        keys: new Set(replay.keys),
        refused: undefined,
        wake: () => undefined,
        waiting: new AbortController(),
      };
      const isAwaited = !replay.keys.some((key) => locks.isHeld(key));
      pending.set(operation.id, one);
      const { promise: refused, resolve } = Promise.withResolvers<void>();
      let isInBackground = !isAwaited;
      const backgrounded = (): void => {
        isInBackground = true;
        resolve();
      };
      const replaying = run(one, replay, { scope, isAwaited, refused: backgrounded })
        .catch((thrown: unknown) => {
          if (!isInBackground) throw thrown;
          if (stopping.signal.aborted || thrown instanceof EndedOnRecord) return;
          log.warn('the interrupted operation failed', { operation: operation.id, why: stowageError(thrown).message });
        })
        .finally(() => pending.delete(operation.id));
      if (isAwaited) await Promise.race([replaying, refused]);
    },
    refusal: (id) => pending.get(id)?.refused,
    cancel: (id) => {
      pending.get(id)?.waiting.abort();
      return pending.has(id);
    },
    lock: async (keys, signal) => {
      using limit = holder(keys) && clock.deadline(lockPatienceMs, signal);
      try {
        return await locks.hold(keys, limit?.signal ?? signal);
      } catch (cause) {
        const one = holder(keys);
        throw one !== undefined && cause instanceof DeadlineExceeded ? isPending(one) : cause;
      }
    },
    wake: (store) => {
      for (const one of pending.values()) if (one.operation.store === store) one.wake();
    },
    stop: () => {
      stopping.abort(new ShuttingDown('Stowage is stopping'));
      for (const { operation, refused } of pending.values())
        if (refused !== undefined) running.get(operation.id)?.controller.abort(stopping.signal.reason);
    },
  };
}

function isPending({ operation: { id, kind, subject }, refused }: PendingReplay): StowageError {
  const message = `${kind} of ${subject} (${id}) was interrupted and is not finished yet`;
  return new StowageError(refused === undefined ? message : `${message}: ${refused.message}`, {
    code: 'busy',
    reason: 'operation-pending',
    action: `Retry when it is finished, or cancel it: stowage operations cancel ${id}`,
    // The store's message may name servers and paths.
    toUsers: { message },
    cause: refused,
  });
}
