import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
/** Runs the garbage collector, also if Node was started without --expose-gc. */
export const collect = runInNewContext('gc') as NodeJS.GCFunction;

/** The memory in use in MiB, on the heap and in buffers. */
export function heldMib(): number {
  void collect();
  const { heapUsed, external } = process.memoryUsage();
  return (heapUsed + external) / 2 ** 20;
}
