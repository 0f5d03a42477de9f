import { flushCompileCache } from 'node:module';
import process from 'node:process';
import { libc } from './libc.ts';

/**
 * Exits at once; call it when all output is written. `process.exit` waits for V8's threads, and on glibc before 2.41 about once in a
 * hundred times one of them is never woken (glibc bug 25847): the process then hangs.
 */
export function endProcess(status: number): never {
  if (process.platform !== 'linux') process.exit(status);
  try {
    // Node flushes the compile cache when it exits, but _exit skips that. Without it every start would compile everything again.
    flushCompileCache();
    libc().func('void _exit(int status)')(status);
  } catch {
    // This system has no libc that can be loaded.
  }
  process.exit(status);
}
