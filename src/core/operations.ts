import type { Clock } from '#base/clock.ts';
import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { canceled } from './errors.ts';
import type { Events } from './events.ts';
import type { Operation, OperationId } from './model.ts';
import { newOperationId } from './names.ts';
import { createReplays, type Replays } from './operation-replays.ts';
import {
  createOperationRunner,
  errorOf,
  publishOperation,
  type RunningOperation,
  refusedByShutdown,
  ShuttingDown,
} from './operation-runner.ts';
import type { Outcome, Progress, Work } from './operation-work.ts';
import type { OperationQuery, Page, Records } from './ports.ts';

/** A caller's request. */
export interface Call extends Scope {
  /** The same request id gives the same result. */
  readonly requestId: string;
  /** Called after the operation is recorded, before its work begins. */
  readonly onOperation?: (operation: Operation) => void;
}

export interface OperationIntent {
  readonly kind: string;
  readonly store?: string;
  readonly subject: string;
  readonly params: Readonly<Record<string, unknown>>;
  readonly deadlineMs?: number;
}

export interface OperationView {
  readonly operation: Operation;
  readonly progress: Progress | undefined;
}

export interface Operations {
  /**
   * Locks the keys, so that operations on one volume run one after the other. Throws 'busy' after some seconds if the replay of an
   * interrupted operation holds one of them and cannot finish.
   */
  lock(keys: readonly string[], signal: AbortSignal): Promise<Disposable>;
  /** Records the intent, does the work, records the end. Call it after checking the request, with the locks held. */
  run<T>(intent: OperationIntent, call: Call, work: (scope: Work) => Promise<Outcome<T>>): Promise<T>;
  /** Replays an operation that a crash interrupted, with retries for temporary failures. */
  readonly resume: Replays['resume'];
  /** The store was opened: retries its pending operations at once. */
  readonly wake: Replays['wake'];
  get(id: OperationId): OperationView | undefined;
  /** Newest first. */
  page(query: OperationQuery): Page<OperationView>;
  /** False: the operation is not running. */
  cancel(id: OperationId): boolean;
  readonly running: number;
  /** The number of running operations on visible stores. */
  runningIn(visible: (store: string | undefined) => boolean): number;
  /** Rejects new operations and waits for running ones. After `graceMs` interrupts the rest, which stay recorded for the next start. */
  drain(graceMs: number): Promise<void>;
}

const defaultDeadlineMs = 120_000;
/** How long interrupted operations get to react to the abort. */
const abortWaitMs = 2_000;

export function createOperations(parts: {
  readonly records: Records;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
}): Operations {
  const { records, events, clock } = parts;
  const locks = createKeyedLock();
  const running = new Map<OperationId, RunningOperation>();
  const runOperation = createOperationRunner({ ...parts, running });
  const replays = createReplays({ ...parts, runOperation: runOperation, locks, running });
  let stopping = false;

  const view = (operation: Operation): OperationView => {
    const refused = operation.state === 'running' ? replays.lastFailure(operation.id) : undefined;
    return {
      operation: refused === undefined ? operation : { ...operation, error: errorOf(refused) },
      progress: running.get(operation.id)?.progress,
    };
  };

  return {
    lock: async (keys, signal) => {
      const held = await replays.lock(keys, signal);
      if (!stopping) return held;
      held[Symbol.dispose]();
      throw refusedByShutdown();
    },
    run: async (intent, call, work) => {
      if (stopping) throw refusedByShutdown();
      const operation = newOperation(intent, clock.now());
      return await runOperation(operation, call, intent.deadlineMs ?? defaultDeadlineMs, work, () => {
        publishOperation(events, 'started', operation);
        call.onOperation?.(operation);
      });
    },
    resume: replays.resume,
    wake: replays.wake,
    get: (id) => {
      const operation = records.operations.get(id);
      return operation && view(operation);
    },
    page: (query) => {
      const { items, next } = records.operations.page(query);
      return { items: items.map(view), next };
    },
    cancel: (id) => {
      const entry = running.get(id);
      if (entry === undefined) return replays.cancel(id);
      entry.controller.abort(canceled());
      return true;
    },
    get running() {
      return running.size;
    },
    runningIn: (visible) => [...running.values()].filter(({ operation }) => visible(operation.store)).length,
    drain: async (graceMs) => {
      stopping = true;
      replays.stop();
      await drain(running, graceMs, clock);
    },
  };
}

function newOperation({ kind, store, subject, params }: OperationIntent, startedAt: number): Operation {
  const id = newOperationId();
  return { id, kind, store, subject, params, state: 'running', startedAt, endedAt: undefined, error: undefined };
}

async function drain(
  running: ReadonlyMap<OperationId, RunningOperation>,
  graceMs: number,
  clock: Clock,
): Promise<void> {
  const allEnded = (): Promise<unknown> => Promise.all([...running.values()].map((entry) => entry.ended));
  await endsWithin(allEnded(), graceMs, clock);
  for (const entry of running.values()) entry.controller.abort(new ShuttingDown('Stowage is stopping'));
  // A system call on a hung disk cannot be aborted. Its operation is on record, and the next start resumes it.
  await endsWithin(allEnded(), abortWaitMs, clock);
}
