/**
 * Memory that READs are answered from, used again and again: what was used is in the processor's cache, and the system need
 * not clear new pages for it.
 */
export interface ReadBuffers {
  /** At least so many bytes. */
  take(size: number): Buffer;
  /** It holds an answer that is written when promises are kept, before any tick. After that it is somebody else's. */
  answered(buffer: Buffer): void;
}

/** Beside what the kernel asks for (powers of two) there is room for the header of the answer. */
const headRoom = 4096;
const smallest = 16 * 1024;
/** Of memory that nobody uses; more than this is given back to the system. */
const mostKept = 8 * 1024 * 1024;

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
      if (kept + buffer.length > mostKept) continue;
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
