import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { stowageError } from './errors.ts';

/** Work that is done again and again while Stowage runs. */
export interface MaintenanceTask {
  readonly name: string;
  readonly everyMs: number;
  /** For one pass. A pass that works on many things also has a deadline for each of them. */
  readonly deadlineMs: number;
  run(scope: Scope): Promise<unknown>;
}

/** At shutdown, passes that are running get this long to end. */
const stopMs = 5_000;

/**
 * Runs each task in a loop of its own. No task waits for another: many dead mounts, which take 20 s each, must not keep the records of use from
 * being renewed, since other hosts take a record that is five minutes old for stale. A pass that is still running is not started again,
 * not even after its deadline: a system call on a dead disk hears no signal.
 */
export function startMaintenance(tasks: readonly MaintenanceTask[], clock: Clock, scope: Scope): AsyncDisposable {
  const stopping = new AbortController();
  const signal = AbortSignal.any([scope.signal, stopping.signal]);
  const loops = tasks.map((task) => startLoop(task, clock, { ...scope, signal }));
  return {
    [Symbol.asyncDispose]: async () => {
      stopping.abort();
      await endsWithin(Promise.all(loops.map((loop) => loop.stop())), stopMs, clock);
    },
  };
}

interface TaskLoop {
  /** Ends when the pass that is running does. */
  stop(): Promise<void>;
}

function startLoop(task: MaintenanceTask, clock: Clock, scope: Scope): TaskLoop {
  const { name, everyMs } = task;
  let running: Promise<void> | undefined;
  let next: Disposable | undefined;
  let isReported = false;

  function turn(): void {
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
    next = clock.after(everyMs, turn);
  }

  schedule();
  return {
    stop: async () => {
      next?.[Symbol.dispose]();
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
