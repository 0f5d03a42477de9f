import process from 'node:process';
import { setFlagsFromString } from 'node:v8';
import type { Clock } from '#base/clock.ts';
import { lazyBindings } from '#base/linux/libc.ts';

/**
 * Makes V8 also discard compiled code that was not used for two garbage collections: 2.6 MB after a thousand volumes. Set here and not in
 * bin/stowage, since a Node that does not know one of these flags would not start.
 */
const v8Flags = ['--flush-baseline-code', '--bytecode-old-age=2'];

/** The operations on this process that are needed here. */
export interface Process {
  /** The CPU time used so far, in milliseconds. */
  cpuMs(): number;
  /** Returns unused memory to the system. */
  releaseMemory(): void;
}

const checkIntervalMs = 10_000;
/** Less CPU time than this is idle: renewing the Lease, and watch events. */
const maxIdleCpuMs = 500;
/** After this much CPU time there is enough garbage to be worth the pause. */
const minBusyCpuMs = 1_000;

/**
 * Returns the memory of a burst of work to the system when the process is idle again. V8 collects garbage only when it needs memory, and an
 * idle process needs none: it would keep the memory of thousands of claims for days. The alternative, --optimize-for-size, which
 * bin/stowage sets for other commands, makes each claim and each mount a quarter slower. And the C library keeps freed memory between
 * blocks in use until `malloc_trim` returns it: a tenth of an agent's memory.
 */
export function releaseMemoryWhenIdle(clock: Clock, own: Process = thisProcess()): Disposable {
  for (const flag of v8Flags) setFlagsFromString(flag);
  let before = own.cpuMs();
  // The start always leaves much garbage, even a fast one.
  let cpuSinceReleaseMs = minBusyCpuMs;
  let timer = clock.after(checkIntervalMs, check);

  function check(): void {
    const now = own.cpuMs();
    const isIdle = now - before < maxIdleCpuMs;
    cpuSinceReleaseMs += now - before;
    before = now;
    if (isIdle && cpuSinceReleaseMs >= minBusyCpuMs) {
      own.releaseMemory();
      cpuSinceReleaseMs = 0;
      // Don't count the collection itself as work.
      before = own.cpuMs();
    }
    timer = clock.after(checkIntervalMs, check);
  }

  return { [Symbol.dispose]: () => timer[Symbol.dispose]() };
}

const native = lazyBindings({ malloc_trim: 'int malloc_trim(size_t pad)' });

export function thisProcess(): Process {
  // Undefined: Node was started without --expose-gc.
  const { gc } = globalThis;
  return {
    cpuMs: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1_000;
    },
    releaseMemory: () => {
      void gc?.({ type: 'major', execution: 'sync', flavor: 'last-resort' });
      trim();
    },
  };
}

function trim(): void {
  try {
    native().malloc_trim(0);
  } catch {
    // C libraries other than glibc lack it.
  }
}
