import process from 'node:process';
import { setFlagsFromString } from 'node:v8';
import type { Clock } from '#base/clock.ts';
import { foreign } from '#base/linux/libc.ts';

/**
 * What was compiled and then not used while V8 looked twice for what can go, goes too: 2.6 MB after a thousand volumes. Said here and
 * not in bin/stowage, since a Node that does not know one of these words would not start.
 */
const flags = ['--flush-baseline-code', '--bytecode-old-age=2'];

/** What can be asked of this process. */
export interface Process {
  /** Of the processor, that it has had so far, in milliseconds. */
  cpuMs(): number;
  /** All memory that it can do without. */
  giveBack(): void;
}

const everyMs = 10_000;
/** Less than that is what it does all the time: the Lease, and what watches say. */
const idleMs = 500;
/** So much work leaves enough behind to be worth a pause. */
const muchMs = 1_000;

/**
 * Gives back what a burst of work needed once it is over. V8 looks for what is no longer used only when it needs more, and whoever
 * has nothing to do needs nothing: thousands of claims would be paid for in memory for days. V8 can be told instead to be
 * small at any time (--optimize-for-size, as bin/stowage does for others): then each claim and each mount costs a quarter more. And what is
 * freed between two things that are still used, the C library keeps until it is told: a tenth of what an agent holds.
 */
export function giveBackWhenIdle(clock: Clock, own: Process = thisProcess()): Disposable {
  for (const flag of flags) setFlagsFromString(flag);
  let before = own.cpuMs();
  // Its start leaves much behind, however fast it was.
  let worked = muchMs;
  let timer = clock.after(everyMs, look);

  function look(): void {
    const now = own.cpuMs();
    const isIdle = now - before < idleMs;
    worked += now - before;
    before = now;
    if (isIdle && worked >= muchMs) {
      own.giveBack();
      worked = 0;
      // What this took is no work.
      before = own.cpuMs();
    }
    timer = clock.after(everyMs, look);
  }

  return { [Symbol.dispose]: () => timer[Symbol.dispose]() };
}

const native = foreign({ malloc_trim: 'int malloc_trim(size_t pad)' });

export function thisProcess(): Process {
  // Undefined: nobody started it so that it can be told to.
  const { gc } = globalThis;
  return {
    cpuMs: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1_000;
    },
    giveBack: () => {
      void gc?.({ type: 'major', execution: 'sync', flavor: 'last-resort' });
      trim();
    },
  };
}

function trim(): void {
  try {
    native().malloc_trim(0);
  } catch {
    // Other C libraries do not know it.
  }
}
