import { maxTransfer } from '../structures.ts';

/** The number of free buffers to keep; more at the same time are rare. */
const kept = 32;
/** Smaller buffers come from the process's heap. */
const large = 64 * 1024;

/** Reuses the buffers of large reads: fresh memory costs as much as the read, since the kernel zeroes each page of it. */
export interface ReadMemory {
  take(length: number): Buffer;
  /** Takes back a buffer from `take`, or a part of one; ignores anything else. */
  giveBack(data: Uint8Array): void;
  /** Frees the buffers that were not needed since the last call. */
  freeUnused(): void;
}

export function createReadMemory(): ReadMemory {
  const free: Buffer[] = [];
  const ours = new WeakSet<ArrayBufferLike>();
  /** The number of buffers that stayed free since the last `freeUnused`. */
  let unused = 0;
  return {
    take: (length) => {
      if (length < large || length > maxTransfer) return Buffer.allocUnsafeSlow(length);
      const whole = free.pop() ?? Buffer.allocUnsafeSlow(maxTransfer);
      unused = Math.min(unused, free.length);
      ours.add(whole.buffer);
      return whole.subarray(0, length);
    },
    giveBack: ({ buffer }) => {
      if (free.length < kept && ours.delete(buffer)) free.push(Buffer.from(buffer));
    },
    freeUnused: () => {
      free.splice(0, unused);
      unused = free.length;
    },
  };
}
