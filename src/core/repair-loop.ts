import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { stowageError } from './errors.ts';
import type { Mounts } from './mounts.ts';

/** Repairs when somebody doubts that all mounts are served, and goes on for as long as one could not be repaired. */
export interface RepairLoop extends Disposable {
  /** At once, unless a repair has just been made: it may be what the doubt comes from, and is given its pause. */
  trigger(): Promise<void>;
}

/** Whatever is in the way may be gone in a moment, or last for hours. */
const pause = { shortest: 1_000, longest: 30_000 } as const;

export function createRepairLoop({ repair }: Pick<Mounts, 'repair'>, clock: Clock, scope: Scope): RepairLoop {
  const over = new AbortController();
  const own: Scope = { ...scope, signal: AbortSignal.any([scope.signal, over.signal]) };
  let running: Promise<void> | undefined;
  let isDoubted = false;
  let next: Disposable | undefined;
  let ms: number = pause.shortest;
  let restsUntil = 0;

  /** False: some mounts are dead still, or it is not known. */
  async function repaired(): Promise<boolean> {
    try {
      return (await repair(own)).length === 0;
    } catch (thrown) {
      if (!own.signal.aborted) own.log.warn('mounts were not looked at', { why: stowageError(thrown).message });
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
    // Who doubts while it begins doubts during it.
    running = Promise.resolve().then(round);
    return running;
  }

  return {
    trigger: async () => {
      if (own.signal.aborted) return;
      isDoubted = true;
      if (running !== undefined) return await running;
      if (clock.elapsed() < restsUntil) return later();
      // Nothing is left of earlier troubles.
      if (next === undefined) ms = pause.shortest;
      await start();
    },
    [Symbol.dispose]: () => {
      over.abort();
      next?.[Symbol.dispose]();
    },
  };
}
