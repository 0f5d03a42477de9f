import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { errorCodes } from './error-codes.ts';
import { type StowageError, stowageError } from './errors.ts';
import type { Operation, OperationId } from './model.ts';
import { EndedOnRecord, type RunningOperation } from './operation-runner.ts';
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

export interface PendingReplay {
  readonly operation: Operation;
  readonly keys: ReadonlySet<string>;
  lastFailure: StowageError | undefined;
  /** Aborted if the operation is cancelled before it has its locks. */
  readonly waiting: AbortController;
  wake(): void;
}

/** The attempt that `resume` waits for, if the locks were free. */
export interface FirstAttempt {
  readonly scope: Scope;
  readonly isAwaited: boolean;
  /** Called when an attempt failed temporarily. */
  readonly onFailure: () => void;
}

/** Repeats the work of a replay until it succeeds or fails permanently. */
export type ReplayAttempts = (
  pendingReplay: PendingReplay,
  replay: Replay,
  work: Work,
  first: FirstAttempt,
) => Promise<Outcome<unknown>>;

const attemptTimeoutMs = 120_000;
const [firstBackoffMs, maxBackoffMs] = [1_000, 60_000];
const unending = new AbortController().signal;

export function createReplayAttempts({
  records,
  running,
  clock,
  log,
  stopping,
}: {
  readonly records: Pick<Records, 'operations'>;
  readonly running: ReadonlyMap<OperationId, RunningOperation>;
  readonly clock: Clock;
  readonly log: Log;
  /** Aborted when Stowage stops. */
  readonly stopping: AbortSignal;
}): ReplayAttempts {
  return async (pendingReplay, replay, work, first) => {
    const { id, kind, subject } = pendingReplay.operation;
    let waitMs = firstBackoffMs;
    for (let attemptNumber = 1; ; attemptNumber++) {
      const isFirst = attemptNumber === 1 && first.isAwaited;
      try {
        return await attempt(replay, isFirst, work, isFirst ? first.scope : { ...work, signal: unending }, clock);
      } catch (thrown) {
        if (thrown instanceof EndedOnRecord) throw thrown;
        const failure = stowageError(thrown);
        if (replay.once === true || work.signal.aborted || !errorCodes[failure.code].retry) throw failure;
        pendingReplay.lastFailure = failure;
        if (attemptNumber === 1)
          log.warn('an interrupted operation cannot be finished now and is retried', {
            operation: id,
            kind,
            subject,
            why: failure.message,
            action: failure.action,
          });
        first.onFailure();
        // Stowage is stopping, so the next attempt is after the next start.
        if (stopping.aborted) running.get(id)?.controller.abort(stopping.reason);
      }
      waitMs =
        (await backoff(pendingReplay, waitMs, work.signal, clock)) === 'woken'
          ? firstBackoffMs
          : Math.min(waitMs * 2, maxBackoffMs);
      // The store was removed, or has another location now.
      if (records.operations.get(id)?.state !== 'running') throw new EndedOnRecord(id);
      pendingReplay.lastFailure = undefined;
    }
  };
}

async function attempt(
  replay: Replay,
  isFirst: boolean,
  work: Work,
  scope: Scope,
  clock: Clock,
): Promise<Outcome<unknown>> {
  using limit = clock.deadline(replay.deadlineMs ?? attemptTimeoutMs, AbortSignal.any([work.signal, scope.signal]));
  const { signal } = limit;
  const attemptWork = (isFirst && replay.firstWork) || replay.work;
  try {
    return await attemptWork({ ...work, signal });
  } catch (thrown) {
    if (thrown instanceof EndedOnRecord) throw thrown;
    throw signal.aborted && signal.reason instanceof Error ? stowageError(signal.reason) : stowageError(thrown);
  }
}

/** Waits `ms`, but not longer than until the store is opened. */
async function backoff(
  pendingReplay: PendingReplay,
  ms: number,
  signal: AbortSignal,
  clock: Clock,
): Promise<'over' | 'woken'> {
  const { promise, resolve, reject } = Promise.withResolvers<'over' | 'woken'>();
  using _timer = clock.after(ms, () => resolve('over'));
  pendingReplay.wake = () => resolve('woken');
  using _ = onAbort(signal, () => reject(signal.reason));
  return await promise;
}
