import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
/** What looks for all that is no longer used, for those who were not started so that they can be told to. */
export const collect = runInNewContext('gc') as NodeJS.GCFunction;

/** What is really held: on the heap, and outside of it in buffers. In MiB. */
export function heldMib(): number {
  void collect();
  const { heapUsed, external } = process.memoryUsage();
  return (heapUsed + external) / 2 ** 20;
}
