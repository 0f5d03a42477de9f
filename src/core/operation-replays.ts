import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { canceled, StowageError, stowageError } from './errors.ts';
import type { Operation, OperationId } from './model.ts';
import { EndedOnRecord, type OperationRunner, type RunningOperation, ShuttingDown } from './operation-runner.ts';
import type { Records } from './ports.ts';
import { createReplayAttempts, type FirstAttempt, type PendingReplay, type Replay } from './replay-attempts.ts';

export interface Replays {
  /**
   * Returns when the operation has ended, or when its first attempt failed temporarily; then it is retried in the background until it
   * ends. Throws after a permanent failure. If its locks are not free, the replay runs in the background from the start.
   */
  resume(operation: Operation, scope: Scope, replay: Replay): Promise<void>;
  /** Why the last attempt failed. Undefined: an attempt is running, or there is no such replay. */
  lastFailure(id: OperationId): StowageError | undefined;
  /** Cancels a replay that waits for its locks. False: there is no such replay. */
  cancel(id: OperationId): boolean;
  /** Locks the keys. Waits a bounded time for a replay that holds them, then throws 'busy' with the name of its operation. */
  lock(keys: readonly string[], signal: AbortSignal): Promise<Disposable>;
  /** The store was opened: retries its operations at once. */
  wake(store: string): void;
  /** Ends all waiting. The operations stay on record for the next start. */
  stop(): void;
}

/** How long a request waits for a replay. Queue workers wait here too, and an unreachable store must not block all of them. */
const lockTimeoutMs = 10_000;
const unending = new AbortController().signal;

export function createReplays(parts: {
  readonly locks: KeyedLock;
  readonly runOperation: OperationRunner;
  readonly running: ReadonlyMap<OperationId, RunningOperation>;
  readonly records: Pick<Records, 'operations'>;
  readonly clock: Clock;
  readonly log: Log;
}): Replays {
  const { locks, runOperation: perform, running, records, clock, log } = parts;
  const pending = new Map<OperationId, PendingReplay>();
  const stopping = new AbortController();
  const runAttempts = createReplayAttempts({ records, running, clock, log, stopping: stopping.signal });

  async function runReplay(pendingReplay: PendingReplay, replay: Replay, first: FirstAttempt): Promise<void> {
    using held = await locks
      .hold(replay.keys, AbortSignal.any([stopping.signal, pendingReplay.waiting.signal]))
      .catch((thrown: unknown) => {
        if (!pendingReplay.waiting.signal.aborted) throw thrown;
        return undefined;
      });
    await perform(pendingReplay.operation, { signal: unending, log }, undefined, async (work) => {
      if (held === undefined) throw canceled();
      return await runAttempts(pendingReplay, replay, work, first);
    });
  }

  /** The operation that holds one of the keys; otherwise one that waits for them. */
  function findHolder(keys: readonly string[]): PendingReplay | undefined {
    const candidates = [...pending.values()].filter((one) => keys.some((key) => one.keys.has(key)));
    return candidates.find(({ operation }) => running.has(operation.id)) ?? candidates[0];
  }

  return {
    resume: async (operation, scope, replay) => {
      // A store that is reopened at run time can still have a replay in progress.
      if (pending.has(operation.id) || running.has(operation.id)) return;
      const pendingReplay: PendingReplay = {
        operation,
        keys: new Set(replay.keys),
        lastFailure: undefined,
        wake: () => undefined,
        waiting: new AbortController(),
      };
      const isAwaited = !replay.keys.some((key) => locks.isHeld(key));
      pending.set(operation.id, pendingReplay);
      const { promise: refusedOnce, resolve } = Promise.withResolvers<void>();
      let isInBackground = !isAwaited;
      const continueInBackground = (): void => {
        isInBackground = true;
        resolve();
      };
      const replaying = runReplay(pendingReplay, replay, { scope, isAwaited, onFailure: continueInBackground })
        .catch((thrown: unknown) => {
          if (!isInBackground) throw thrown;
          if (stopping.signal.aborted || thrown instanceof EndedOnRecord) return;
          log.warn('the interrupted operation failed', { operation: operation.id, why: stowageError(thrown).message });
        })
        .finally(() => pending.delete(operation.id));
      if (isAwaited) await Promise.race([replaying, refusedOnce]);
    },
    lastFailure: (id) => pending.get(id)?.lastFailure,
    cancel: (id) => {
      pending.get(id)?.waiting.abort();
      return pending.has(id);
    },
    lock: async (keys, signal) => {
      using limit = findHolder(keys) && clock.deadline(lockTimeoutMs, signal);
      try {
        return await locks.hold(keys, limit?.signal ?? signal);
      } catch (cause) {
        const blocking = findHolder(keys);
        throw blocking !== undefined && cause instanceof DeadlineExceeded ? operationPending(blocking) : cause;
      }
    },
    wake: (store) => {
      for (const one of pending.values()) if (one.operation.store === store) one.wake();
    },
    stop: () => {
      stopping.abort(new ShuttingDown('Stowage is stopping'));
      for (const { operation, lastFailure } of pending.values())
        if (lastFailure !== undefined) running.get(operation.id)?.controller.abort(stopping.signal.reason);
    },
  };
}

function operationPending({ operation: { id, kind, subject }, lastFailure }: PendingReplay): StowageError {
  const message = `${kind} of ${subject} (${id}) was interrupted and is not finished yet`;
  return new StowageError(lastFailure === undefined ? message : `${message}: ${lastFailure.message}`, {
    code: 'busy',
    reason: 'operation-pending',
    action: `Retry when it is finished, or cancel it: stowage operations cancel ${id}`,
    // The store's message may name servers and paths.
    toUsers: { message },
    cause: lastFailure,
  });
}
