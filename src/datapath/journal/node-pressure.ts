import { maxChunks, recordsPerChunk } from './layout.ts';

export interface NodeLimits {
  /** From this count on, the kernel is asked to drop dentries: each node costs about half a KiB, here and elsewhere. */
  readonly many: number;
  /** Hard limit. */
  readonly most: number;
}

/** Some records are reserved for hidden names. */
export const usualLimits: NodeLimits = { many: 256 * 1024, most: maxChunks * recordsPerChunk - 4096 };

/** Counts the nodes and asks mounts to shrink when there are too many. */
export interface NodePressure {
  readonly size: number;
  grown(by?: number): void;
  shrunk(): void;
  /** Whether another node fits. If not, asks for room. */
  hasRoom(): boolean;
  /** Registers how to drop about `count` nodes of the mount. */
  onPressure(mount: number, shrink: (count: number) => void): void;
  drop(mount: number): void;
}

export function createNodePressure({ many, most }: NodeLimits, sizeOf: (mount: number) => number): NodePressure {
  const shrinkers = new Map<number, (count: number) => void>();
  const step = Math.ceil(many / 64);
  let askAt = many;
  let size = 0;

  /** Asks the mount with the most nodes. */
  function ask(): void {
    askAt = size + step;
    const [largest] = [...shrinkers.keys()].toSorted((one, other) => sizeOf(other) - sizeOf(one));
    if (largest !== undefined) shrinkers.get(largest)?.(size - many + step);
  }

  return {
    get size() {
      return size;
    },
    grown: (by = 1) => {
      size += by;
      if (size >= askAt) ask();
    },
    shrunk: () => {
      size--;
      askAt = Math.max(many, Math.min(askAt, size + step));
    },
    hasRoom: () => {
      if (size >= most) ask();
      return size < most;
    },
    onPressure: (mount, shrink) => {
      shrinkers.set(mount, shrink);
    },
    drop: (mount) => {
      shrinkers.delete(mount);
    },
  };
}
