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
const pause = { shortest: 1_000, longest: 30_000 } as const;

export function createRepairLoop(
  { repair }: { readonly repair: RepairMounts },
  clock: Clock,
  scope: Scope,
): RepairLoop {
  const over = new AbortController();
  const own: Scope = { ...scope, signal: AbortSignal.any([scope.signal, over.signal]) };
  let running: Promise<void> | undefined;
  let isDoubted = false;
  let next: Disposable | undefined;
  let ms: number = pause.shortest;
  let restsUntil = 0;

  /** False: some mounts are still dead, or their state is unknown. */
  async function repaired(): Promise<boolean> {
    try {
      return (await repair(own)).length === 0;
    } catch (thrown) {
      if (!own.signal.aborted) own.log.warn('mounts could not be checked', { why: stowageError(thrown).message });
      return false;
    }
  }

  function later(): void {
    if (next !== undefined || own.signal.aborted) return;
    next = clock.after(ms, () => void start());
    ms = Math.min(pause.longest, ms * 2);
  }

  async function round(): Promise<void> {
    next?.[Symbol.dispose]();
    next = undefined;
    isDoubted = false;
    const isDone = await repaired();
    running = undefined;
    restsUntil = clock.elapsed() + pause.shortest;
    if (!isDone || isDoubted) later();
  }

  function start(): Promise<void> {
    // Start asynchronously: a trigger that arrives during start-up then causes another pass.
    running = Promise.resolve().then(round);
    return running;
  }

  return {
    trigger: async () => {
      if (own.signal.aborted) return;
      isDoubted = true;
      if (running !== undefined) return await running;
      if (clock.elapsed() < restsUntil) return later();
      // No retry is pending, so reset the backoff.
      if (next === undefined) ms = pause.shortest;
      await start();
    },
    [Symbol.dispose]: () => {
      over.abort();
      next?.[Symbol.dispose]();
    },
  };
}
