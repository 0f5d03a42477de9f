import { maxChunks, recordsPerChunk } from './layout.ts';

export interface NodeLimits {
  /** From this count on, the kernel is asked to drop dentries: each node costs about half a KiB, here and elsewhere. */
  readonly shrinkFrom: number;
  /** Hard limit. */
  readonly maxNodes: number;
}

/** Some records are reserved for hidden names. */
export const defaultLimits: NodeLimits = { shrinkFrom: 256 * 1024, maxNodes: maxChunks * recordsPerChunk - 4096 };

/** Counts the nodes and asks mounts to shrink when there are too many. */
export interface NodePressure {
  readonly size: number;
  add(by?: number): void;
  removeOne(): void;
  /** Whether another node fits. If not, asks for room. */
  hasRoom(): boolean;
  /** Registers how to drop about `count` nodes of the mount. */
  onPressure(mount: number, shrink: (count: number) => void): void;
  removeMount(mount: number): void;
}

export function createNodePressure(
  { shrinkFrom, maxNodes }: NodeLimits,
  sizeOf: (mount: number) => number,
): NodePressure {
  const shrinkers = new Map<number, (count: number) => void>();
  const step = Math.ceil(shrinkFrom / 64);
  let nextRequestSize = shrinkFrom;
  let size = 0;

  /** Asks the mount with the most nodes. */
  function requestShrink(): void {
    nextRequestSize = size + step;
    const [largest] = [...shrinkers.keys()].toSorted((one, other) => sizeOf(other) - sizeOf(one));
    if (largest !== undefined) shrinkers.get(largest)?.(size - shrinkFrom + step);
  }

  return {
    get size() {
      return size;
    },
    add: (by = 1) => {
      size += by;
      if (size >= nextRequestSize) requestShrink();
    },
    removeOne: () => {
      size--;
      nextRequestSize = Math.max(shrinkFrom, Math.min(nextRequestSize, size + step));
    },
    hasRoom: () => {
      if (size >= maxNodes) requestShrink();
      return size < maxNodes;
    },
    onPressure: (mount, shrink) => {
      shrinkers.set(mount, shrink);
    },
    removeMount: (mount) => {
      shrinkers.delete(mount);
    },
  };
}
