import process from 'node:process';
import type { Clock } from '#base/clock.ts';

/** What can be asked of this process. */
export interface Process {
  /** Of the processor, that it has had so far, in milliseconds. */
  cpuMs(): number;
  /** Undefined: nobody started it so that it can be told to. */
  readonly collect: (() => void) | undefined;
}

const everyMs = 10_000;
/** Less than that is what it does all the time: the Lease, and what watches say. */
const idleMs = 500;
/** So much work leaves enough behind to be worth a pause. */
const muchMs = 1_000;

/**
 * Gives back what a burst of work needed once it is over. V8 looks for what is no longer used only when it needs more, and whoever
 * has nothing to do needs nothing: thousands of claims would be paid for in memory for days. V8 can be told instead to be
 * small at any time (--optimize-for-size, as bin/stowage does for others): then each claim costs a quarter more.
 */
export function giveBackWhenIdle(clock: Clock, own: Process = thisProcess()): Disposable {
  const { collect } = own;
  if (collect === undefined) return { [Symbol.dispose]: () => undefined };
  let before = own.cpuMs();
  let worked = 0;
  let timer = clock.after(everyMs, look);

  function look(): void {
    const now = own.cpuMs();
    const isIdle = now - before < idleMs;
    worked += now - before;
    before = now;
    if (isIdle && worked >= muchMs) {
      collect?.();
      worked = 0;
      // What this took is no work.
      before = own.cpuMs();
    }
    timer = clock.after(everyMs, look);
  }

  return { [Symbol.dispose]: () => timer[Symbol.dispose]() };
}

function thisProcess(): Process {
  const { gc } = globalThis;
  return {
    cpuMs: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1_000;
    },
    collect: gc === undefined ? undefined : () => void gc({ type: 'major', execution: 'sync', flavor: 'last-resort' }),
  };
}
