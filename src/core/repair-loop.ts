import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { RepairMounts } from './repair-mounts.ts';

/** Repairs dead mounts when triggered, and retries until all are repaired. */
export interface RepairLoop extends Disposable {
  /** Starts a repair at once, or after a pause if one has just run, since that repair may itself have caused the trigger. */
  trigger(): Promise<void>;
}

/** Exponential backoff: an obstacle may be gone in a moment, or last for hours. */
const backoffMs = { shortest: 1_000, longest: 30_000 } as const;

export function createRepairLoop(
  { repair }: { readonly repair: RepairMounts },
  clock: Clock,
  scope: Scope,
): RepairLoop {
  const stopping = new AbortController();
  const loopScope: Scope = { ...scope, signal: AbortSignal.any([scope.signal, stopping.signal]) };
  let running: Promise<void> | undefined;
  let isTriggered = false;
  let retryTimer: Disposable | undefined;
  let nextBackoffMs: number = backoffMs.shortest;
  let earliestStart = 0;

  /** False: some mounts are still dead, or their state is unknown. */
  async function repairOnce(): Promise<boolean> {
    try {
      return (await repair(loopScope)).length === 0;
    } catch (thrown) {
      if (!loopScope.signal.aborted)
        loopScope.log.warn('mounts could not be checked', { why: stowageError(thrown).message });
      return false;
    }
  }

  function scheduleRetry(): void {
    if (retryTimer !== undefined || loopScope.signal.aborted) return;
    retryTimer = clock.after(nextBackoffMs, () => void start());
    nextBackoffMs = Math.min(backoffMs.longest, nextBackoffMs * 2);
  }

  async function runPass(): Promise<void> {
    retryTimer?.[Symbol.dispose]();
    retryTimer = undefined;
    isTriggered = false;
    const isDone = await repairOnce();
    running = undefined;
    earliestStart = clock.elapsed() + backoffMs.shortest;
    if (!isDone || isTriggered) scheduleRetry();
  }

  function start(): Promise<void> {
    // Start asynchronously: a trigger that arrives during start-up then causes another pass.
    running = Promise.resolve().then(runPass);
    return running;
  }

  return {
    trigger: async () => {
      if (loopScope.signal.aborted) return;
      isTriggered = true;
      if (running !== undefined) return await running;
      if (clock.elapsed() < earliestStart) return scheduleRetry();
      // No retry is pending, so reset the backoff.
      if (retryTimer === undefined) nextBackoffMs = backoffMs.shortest;
      await start();
    },
    [Symbol.dispose]: () => {
      stopping.abort();
      retryTimer?.[Symbol.dispose]();
    },
  };
}
