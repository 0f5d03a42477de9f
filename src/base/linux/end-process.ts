import { flushCompileCache } from 'node:module';
import process from 'node:process';
import { libc } from './libc.ts';

/**
 * Ends this process now, when everything it had to say is written. `process.exit` waits for V8's threads, and once in a hundred
 * times, on glibc before 2.41, one of them is never woken (its bug 25847): the process then hangs after its last word.
 */
export function endProcess(status: number): never {
  if (process.platform !== 'linux') process.exit(status);
  try {
    // Node does this when it ends; without it every start would compile everything anew.
    flushCompileCache();
    libc().func('void _exit(int status)')(status);
  } catch {
    // A system for which there is no such library.
  }
  process.exit(status);
}
