import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { StowageError, stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { Operation, OperationId } from './model.ts';
import type { Outcome, Progress, Work } from './operations.ts';
import type { Records } from './ports.ts';

export interface Running {
  readonly operation: Operation;
  readonly controller: AbortController;
  progress: Progress | undefined;
  readonly ended: Promise<void>;
}

/** The reason of an abort by our own stop: such an operation is not over, the next start takes it up. */
export class ShuttingDown extends Error {
  override readonly name = 'ShuttingDown';
}

export interface PerformParts {
  readonly records: Records;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
  readonly running: Map<OperationId, Running>;
}

export type Perform = <T>(
  operation: Operation,
  scope: Scope,
  limitMs: number,
  work: (scope: Work) => Promise<Outcome<T>>,
) => Promise<T>;

const keptOperations = 1000;
const progressEveryMs = 200;

/** Does the work of a recorded operation and records how it ended. */
export function createPerform(parts: PerformParts): Perform {
  const { events, clock, log, running } = parts;
  const end = createEnd(parts);

  return async (operation, scope, limitMs, work) => {
    const controller = new AbortController();
    const { promise: ended, resolve: ending } = Promise.withResolvers<void>();
    const entry: Running = { operation, controller, progress: undefined, ended };
    let told = 0;
    using _limit = limited(controller, scope.signal, limitMs);
    running.set(operation.id, entry);
    try {
      const { value, record } = await work({
        signal: controller.signal,
        log: scope.log,
        operation: operation.id,
        progress: (progress) => {
          entry.progress = progress;
          // Thousands of small steps must not push everything else out of the readers' ring.
          if (clock.now() - told < progressEveryMs) return;
          told = clock.now();
          publishOperation(events, 'progress', operation, progress);
        },
      });
      end(operation, undefined, record);
      return value;
    } catch (thrown) {
      const reason: unknown = controller.signal.reason;
      if (reason instanceof ShuttingDown) throw interrupted(thrown);
      const failure =
        controller.signal.aborted && reason instanceof Error ? stowageError(reason) : stowageError(thrown);
      if (failure.code === 'internal')
        log.error('operation failed', { operation: operation.id, kind: operation.kind, error: thrown });
      end(operation, failure);
      throw failure;
    } finally {
      running.delete(operation.id);
      ending();
    }
  };
}

/** By hand rather than with AbortSignal.any: this is on the way of every request. */
function limited(controller: AbortController, parent: AbortSignal, limitMs: number): Disposable {
  const stop = (): void => controller.abort(parent.reason);
  const timer = setTimeout(() => controller.abort(new DeadlineExceeded(limitMs)), limitMs);
  timer.unref();
  if (parent.aborted) stop();
  else parent.addEventListener('abort', stop, { once: true });
  return {
    [Symbol.dispose]: () => {
      clearTimeout(timer);
      parent.removeEventListener('abort', stop);
    },
  };
}

function createEnd(parts: PerformParts): (operation: Operation, failure?: StowageError, record?: () => void) => void {
  const { records, events, clock } = parts;
  let sincePrune = 0;
  return (operation, failure, record) => {
    const state = failure === undefined ? 'done' : failure.code === 'canceled' ? 'canceled' : 'failed';
    const error = failure && {
      code: failure.code,
      reason: failure.reason,
      message: failure.message,
      action: failure.action,
    };
    const endedAt = clock.now();
    records.transaction(() => {
      record?.();
      records.operations.end(operation.id, state, endedAt, error);
      // Not at every end: a delete of one row per operation would double the writes.
      if (++sincePrune >= 100) {
        sincePrune = 0;
        records.operations.prune(keptOperations);
      }
    });
    publishOperation(events, 'ended', { ...operation, state, endedAt, error });
  };
}

export function publishOperation(
  events: Events,
  type: 'started' | 'progress' | 'ended',
  operation: Operation,
  progress?: Progress,
): void {
  events.publish(`operation.${type}`, operation.id, operation.store, { operation, progress });
}

function interrupted(cause?: unknown): StowageError {
  return new StowageError('Stowage is stopping; the operation goes on at its next start', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Repeat the request when Stowage runs again; repeating is safe.',
    cause,
  });
}

export function refusedWhileStopping(): StowageError {
  return new StowageError('Stowage is stopping and begins nothing new', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Repeat the request when Stowage runs again.',
  });
}
