import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from './errors.ts';

/** Periodic work. */
export interface MaintenanceTask {
  readonly name: string;
  readonly everyMs: number;
  /** The deadline of one pass. A pass over many items also has a deadline per item. */
  readonly deadlineMs: number;
  run(scope: Scope): Promise<unknown>;
}

/** How long shutdown waits for running passes. */
const stopTimeoutMs = 5_000;

/**
 * Runs each task in a loop of its own, so that no task delays another: repairing many dead mounts takes 20 s each, and other hosts consider a
 * use record stale after five minutes. A pass that is still running is not started again, even after its deadline: a system call on a dead
 * disk cannot be aborted.
 */
export function startMaintenance(tasks: readonly MaintenanceTask[], clock: Clock, scope: Scope): AsyncDisposable {
  const stopping = new AbortController();
  const signal = AbortSignal.any([scope.signal, stopping.signal]);
  const loops = tasks.map((task) => startLoop(task, clock, { ...scope, signal }));
  return {
    [Symbol.asyncDispose]: async () => {
      stopping.abort();
      await endsWithin(Promise.all(loops.map((loop) => loop.stop())), stopTimeoutMs, clock);
    },
  };
}

interface TaskLoop {
  /** Resolves when the running pass ends. */
  stop(): Promise<void>;
}

function startLoop(task: MaintenanceTask, clock: Clock, scope: Scope): TaskLoop {
  const { name, everyMs } = task;
  let running: Promise<void> | undefined;
  let timer: Disposable | undefined;
  let isReported = false;

  function startPass(): void {
    if (scope.signal.aborted) return;
    schedule();
    if (running === undefined) {
      isReported = false;
      running = runOnce(task, clock, scope).finally(() => {
        running = undefined;
      });
    } else if (!isReported) {
      isReported = true;
      scope.log.info('maintenance takes longer than its interval', { task: name, everyMs });
    }
  }

  function schedule(): void {
    timer = clock.after(everyMs, startPass);
  }

  schedule();
  return {
    stop: async () => {
      timer?.[Symbol.dispose]();
      await running;
    },
  };
}

/** Never throws. */
async function runOnce({ name, deadlineMs, run }: MaintenanceTask, clock: Clock, scope: Scope): Promise<void> {
  using limit = clock.deadline(deadlineMs, scope.signal);
  try {
    await run({ ...scope, signal: limit.signal });
  } catch (thrown) {
    if (!scope.signal.aborted) scope.log.warn('maintenance failed', { task: name, why: stowageError(thrown).message });
  }
}
