import { mostChunks, recordsPerChunk } from './layout.ts';

export interface NodeLimits {
  /** From here on the kernel is asked to let go of some: each costs about half a KiB, here and elsewhere. */
  readonly many: number;
  /** More are refused. */
  readonly most: number;
}

/** Some records are left for where removed files are. */
export const usualLimits: NodeLimits = { many: 256 * 1024, most: mostChunks * recordsPerChunk - 4096 };

/** How many nodes there are, and what is done about it when there are too many. */
export interface NodePressure {
  readonly size: number;
  grown(by?: number): void;
  shrunk(): void;
  /** Whether there may be another. If not, room is asked for. */
  hasRoom(): boolean;
  /** The mount gives back about so many when it is asked to. */
  onPressure(mount: number, shrink: (count: number) => void): void;
  drop(mount: number): void;
}

export function createNodePressure({ many, most }: NodeLimits, sizeOf: (mount: number) => number): NodePressure {
  const shrinkers = new Map<number, (count: number) => void>();
  const step = Math.ceil(many / 64);
  let askAt = many;
  let size = 0;

  /** The mount that has most. */
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
