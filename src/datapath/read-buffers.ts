/** Reused buffers for answers to READs: they stay in the CPU's cache, and the system need not clear new pages. */
export interface ReadBuffers {
  /** At least `size` bytes. */
  take(size: number): Buffer;
  /**
   * Returns the buffer. Its answer must be written in the microtasks of this turn; in the next tick the buffer is
   * reused.
   */
  release(buffer: Buffer): void;
}

/** Room for the reply's header: the kernel's read sizes are powers of two. */
const headerBytes = 4096;
const minBufferBytes = 16 * 1024;
/** Limit of unused memory; more is freed. */
const maxUnusedBytes = 8 * 1024 * 1024;

export function createReadBuffers(): ReadBuffers {
  const unusedBySize = new Map<number, Buffer[]>();
  let unusedBytes = 0;
  let answeredBuffers: Buffer[] = [];

  const listOf = (size: number): Buffer[] => {
    const known = unusedBySize.get(size);
    if (known !== undefined) return known;
    const made: Buffer[] = [];
    unusedBySize.set(size, made);
    return made;
  };

  function recycleAnswered(): void {
    for (const buffer of answeredBuffers) {
      if (unusedBytes + buffer.length > maxUnusedBytes) continue;
      unusedBytes += buffer.length;
      listOf(buffer.length).push(buffer);
    }
    answeredBuffers = [];
  }

  return {
    take: (size) => {
      const length = bufferSize(size);
      const buffer = listOf(length).pop();
      if (buffer === undefined) return Buffer.allocUnsafeSlow(length);
      unusedBytes -= length;
      return buffer;
    },
    release: (buffer) => {
      if (answeredBuffers.length === 0) process.nextTick(recycleAnswered);
      answeredBuffers.push(buffer);
    },
  };
}

function bufferSize(size: number): number {
  let room = minBufferBytes;
  while (room + headerBytes < size) room *= 2;
  return room + headerBytes;
}
