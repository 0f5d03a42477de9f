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
  refusedWhileStopping,
  ShuttingDown,
} from './operation-runner.ts';
import type { OperationQuery, Page, Records } from './ports.ts';

/** Who asks, and how to be told about it. */
export interface Call extends Scope {
  /** The same request id gives the same result. */
  readonly requestId: string;
  /** Called once the work has its record, before it begins. */
  readonly onOperation?: (operation: Operation) => void;
}

export interface Progress {
  readonly done: number;
  readonly total: number | undefined;
  readonly unit: string;
}

export interface OperationIntent {
  readonly kind: string;
  readonly store?: string;
  readonly subject: string;
  readonly params: Readonly<Record<string, unknown>>;
  readonly deadlineMs?: number;
}

export interface Work extends Scope {
  readonly operation: OperationId;
  progress(progress: Progress): void;
}

/** What the work came to. */
export interface Outcome<T> {
  readonly value: T;
  /** Written in the same transaction that ends the operation; tried again when that fails. */
  readonly record?: () => void;
  /** Told to whoever listens, once it is on record. */
  readonly announce?: () => void;
}

export interface OperationView {
  readonly operation: Operation;
  readonly progress: Progress | undefined;
}

export interface Operations {
  /**
   * Holds the keys, so that two operations on one volume follow each other. If the replay of an interrupted operation has one of them and
   * cannot be finished, this throws 'busy' after some seconds.
   */
  lock(keys: readonly string[], signal: AbortSignal): Promise<Disposable>;
  /** Writes the intent, does the work, records the end. Call it with the locks held and the request checked. */
  run<T>(intent: OperationIntent, call: Call, work: (scope: Work) => Promise<Outcome<T>>): Promise<T>;
  /** Does the work of an intent that a crash left behind, and retries it while it is refused for the moment. */
  readonly resume: Replays['resume'];
  /** The store was opened: its operations that wait for a retry need not wait longer. */
  readonly wake: Replays['wake'];
  get(id: OperationId): OperationView | undefined;
  /** Newest first. */
  page(query: OperationQuery): Page<OperationView>;
  /** False: it is not running. */
  cancel(id: OperationId): boolean;
  readonly running: number;
  /** Of those, the ones that concern such a store. */
  runningIn(visible: (store: string | undefined) => boolean): number;
  /** Begins nothing new and waits for what runs; after `graceMs` the rest is interrupted and stays recorded for the next start. */
  drain(graceMs: number): Promise<void>;
}

const defaultDeadlineMs = 120_000;
/** What hears that it is interrupted has ended by then. */
const interruptedMs = 2_000;

export function createOperations(parts: {
  readonly records: Records;
  readonly events: Events;
  readonly clock: Clock;
  readonly log: Log;
}): Operations {
  const { records, events, clock } = parts;
  const locks = createKeyedLock();
  const running = new Map<OperationId, RunningOperation>();
  const perform = createOperationRunner({ ...parts, running });
  const replays = createReplays({ ...parts, perform, locks, running });
  let stopping = false;

  const view = (operation: Operation): OperationView => {
    const refused = operation.state === 'running' ? replays.refusal(operation.id) : undefined;
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
      throw refusedWhileStopping();
    },
    run: async (intent, call, work) => {
      if (stopping) throw refusedWhileStopping();
      const operation = begun(intent, clock.now());
      return await perform(operation, call, intent.deadlineMs ?? defaultDeadlineMs, work, () => {
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

function begun({ kind, store, subject, params }: OperationIntent, startedAt: number): Operation {
  const id = newOperationId();
  return { id, kind, store, subject, params, state: 'running', startedAt, endedAt: undefined, error: undefined };
}

async function drain(
  running: ReadonlyMap<OperationId, RunningOperation>,
  graceMs: number,
  clock: Clock,
): Promise<void> {
  const all = (): Promise<unknown> => Promise.all([...running.values()].map((entry) => entry.ended));
  await endsWithin(all(), graceMs, clock);
  for (const entry of running.values()) entry.controller.abort(new ShuttingDown('Stowage is stopping'));
  // A disk that does not answer hears no signal; what hangs on it is on record, and the next start takes it up.
  await endsWithin(all(), interruptedMs, clock);
}
