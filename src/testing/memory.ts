import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
/** Runs the garbage collector, even if Node was started without --expose-gc. */
export const collectGarbage = runInNewContext('gc') as NodeJS.GCFunction;

/** The memory in use in MiB, on the heap and in buffers. */
export function usedMemoryMib(): number {
  void collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return (heapUsed + external) / 2 ** 20;
}
