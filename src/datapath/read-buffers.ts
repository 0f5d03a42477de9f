/** Reused buffers for answers to READs: they stay in the CPU's cache, and the system need not clear new pages. */
export interface ReadBuffers {
  /** At least `size` bytes. */
  take(size: number): Buffer;
  /**
   * Returns the buffer. Its answer must be written in the microtasks of this turn; in the next tick the buffer is
   * reused.
   */
  answered(buffer: Buffer): void;
}

/** Room for the answer's header beside the kernel's sizes (powers of two). */
const headRoom = 4096;
const smallest = 16 * 1024;
/** Limit of unused memory; more is freed. */
const maxKept = 8 * 1024 * 1024;

export function createReadBuffers(): ReadBuffers {
  const free = new Map<number, Buffer[]>();
  let kept = 0;
  let answered: Buffer[] = [];

  const listOf = (size: number): Buffer[] => {
    const known = free.get(size);
    if (known !== undefined) return known;
    const made: Buffer[] = [];
    free.set(size, made);
    return made;
  };

  function takeBack(): void {
    for (const buffer of answered) {
      if (kept + buffer.length > maxKept) continue;
      kept += buffer.length;
      listOf(buffer.length).push(buffer);
    }
    answered = [];
  }

  return {
    take: (size) => {
      const length = roomFor(size);
      const buffer = listOf(length).pop();
      if (buffer === undefined) return Buffer.allocUnsafeSlow(length);
      kept -= length;
      return buffer;
    },
    answered: (buffer) => {
      if (answered.length === 0) process.nextTick(takeBack);
      answered.push(buffer);
    },
  };
}

function roomFor(size: number): number {
  let room = smallest;
  while (room + headRoom < size) room *= 2;
  return room + headRoom;
}
