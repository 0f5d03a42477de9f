import { abortByDeadline, type Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { StowageError, stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { Operation, OperationId } from './model.ts';
import type { Outcome, Progress, Work } from './operation-work.ts';
import type { Records } from './ports.ts';

export interface RunningOperation {
  readonly operation: Operation;
  readonly controller: AbortController;
  progress: Progress | undefined;
  readonly ended: Promise<void>;
}

/** The abort reason at shutdown. The operation stays unfinished, and the next start resumes it. */
export class ShuttingDown extends Error {
  override readonly name = 'ShuttingDown';
}

/** Another part of Stowage has already recorded the end of the operation. */
export class EndedOnRecord extends Error {
  override readonly name = 'EndedOnRecord';
}

export interface OperationRunnerParts {
  readonly records: Records;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
  readonly running: Map<OperationId, RunningOperation>;
}

export type OperationRunner = <T>(
  operation: Operation,
  scope: Scope,
  /** Undefined: the work sets its own deadlines. */
  limitMs: number | undefined,
  work: (scope: Work) => Promise<Outcome<T>>,
  /** Set for a new operation: the runner records the operation, then calls this. */
  onRecorded?: () => void,
) => Promise<T>;

const maxEndedOperations = 1000;
const progressIntervalMs = 200;
const recordRetryMs = 1_000;

/** Does the work of a recorded operation and records how it ended. */
export function createOperationRunner(parts: OperationRunnerParts): OperationRunner {
  const { records, events, clock, log, running } = parts;

  function createProgressReporter(entry: RunningOperation): (progress: Progress) => void {
    let lastPublishedAt = 0;
    return (progress) => {
      entry.progress = progress;
      // Limit progress events, so that they do not push other events out of the ring buffer.
      if (clock.now() - lastPublishedAt < progressIntervalMs) return;
      lastPublishedAt = clock.now();
      publishOperation(events, 'progress', entry.operation, progress);
    };
  }

  function failureOf(thrown: unknown, operation: Operation, { aborted, reason }: AbortSignal): StowageError {
    if (reason instanceof ShuttingDown) throw interruptedByShutdown(thrown);
    if (thrown instanceof EndedOnRecord) throw thrown;
    const failure = aborted && reason instanceof Error ? stowageError(reason) : stowageError(thrown);
    if (failure.code === 'internal')
      log.error('operation failed', { operation: operation.id, kind: operation.kind, error: thrown });
    return failure;
  }

  /** While other operations run, several may begin or end at the same moment: commit them together. */
  const writeRecord = async (writeRow: () => void): Promise<void> => {
    if (running.size > 1) await records.groupCommit(writeRow);
    else writeRow();
  };
  const end = createEnd(parts, writeRecord);

  return async (operation, scope, limitMs, work, onRecorded) => {
    const controller = new AbortController();
    const { signal } = controller;
    const { promise: ended, resolve: resolveEnded } = Promise.withResolvers<void>();
    const entry: RunningOperation = { operation, controller, progress: undefined, ended };
    using _limit = limitMs === undefined ? undefined : abortByDeadline(clock.after, controller, scope.signal, limitMs);
    running.set(operation.id, entry);
    try {
      if (onRecorded !== undefined) {
        await writeRecord(() => records.operations.begin(operation));
        onRecorded();
      }
      const progress = createProgressReporter(entry);
      const outcome = await work({ signal, log: scope.log, operation: operation.id, progress }).catch(
        (thrown: unknown) => failureOf(thrown, operation, signal),
      );
      await end(operation, signal, outcome);
      if (outcome instanceof StowageError) throw outcome;
      return outcome.value;
    } finally {
      running.delete(operation.id);
      resolveEnded();
    }
  };
}

type RecordEnd = (operation: Operation, signal: AbortSignal, outcome: Outcome<unknown> | StowageError) => Promise<void>;

function createEnd(parts: OperationRunnerParts, writeRecord: (write: () => void) => Promise<void>): RecordEnd {
  const { records, events, clock, log } = parts;
  let sincePrune = 0;

  function writeEnd(ended: EndedOperation, record?: () => void): void {
    records.transaction(() => {
      record?.();
      records.operations.end(ended.id, ended.state, ended.endedAt, ended.error);
      // Prune rarely: deleting one row per operation would double the writes.
      if (++sincePrune < 100) return;
      sincePrune = 0;
      records.operations.prune(maxEndedOperations);
    });
  }

  /** Retries until the end of the operation is recorded. Until then the operation counts as running, and its volume stays locked. */
  async function retryUntilRecorded(signal: AbortSignal, attempt: () => Promise<void>): Promise<void> {
    for (let isLogged = false; ; isLogged = true) {
      try {
        return await attempt();
      } catch (thrown) {
        if (signal.reason instanceof ShuttingDown) throw interruptedByShutdown(thrown);
        const { message, action } = stowageError(thrown);
        if (!isLogged) log.error('the end of an operation cannot be recorded; trying again', { why: message, action });
        const { promise, resolve } = Promise.withResolvers<void>();
        clock.after(recordRetryMs, resolve);
        await promise;
      }
    }
  }

  return async (operation, signal, outcome) => {
    const [ended, { record, announce }] =
      outcome instanceof StowageError
        ? [failedOperation(operation, outcome, clock.now()), {}]
        : [{ ...operation, state: 'done', endedAt: clock.now() } as const, outcome];
    await retryUntilRecorded(signal, () => writeRecord(() => writeEnd(ended, record)));
    announce?.();
    publishOperation(events, 'ended', ended);
  };
}

type EndedOperation = Operation & { readonly state: 'done' | 'canceled' | 'failed'; readonly endedAt: number };

function failedOperation(operation: Operation, failure: StowageError, endedAt: number): EndedOperation {
  const state = failure.code === 'canceled' ? 'canceled' : 'failed';
  return { ...operation, state, endedAt, error: errorOf(failure) };
}

/** The part of an error that operation records contain. */
export const errorOf = ({ code, reason, message, action }: StowageError): NonNullable<Operation['error']> => ({
  code,
  reason,
  message,
  action,
});

export function publishOperation(
  events: Events,
  type: 'started' | 'progress' | 'ended',
  operation: Operation,
  progress?: Progress,
): void {
  events.publish(`operation.${type}`, operation.id, operation.store, { operation, progress });
}

function interruptedByShutdown(cause?: unknown): StowageError {
  return new StowageError('Stowage is stopping; the operation continues at the next start', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Repeat the request when Stowage runs again; repeating is safe.',
    cause,
  });
}

export function refusedByShutdown(): StowageError {
  return new StowageError('Stowage is stopping and starts no new operations', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Repeat the request when Stowage runs again.',
  });
}
