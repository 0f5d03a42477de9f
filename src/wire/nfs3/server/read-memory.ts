import { maxTransferBytes } from '../structures.ts';

/** The number of free buffers to keep; more concurrent reads are rare. */
const maxFreeBuffers = 32;
/** Smaller buffers are not reused. */
const minPooledBytes = 64 * 1024;

/** Reuses the buffers of large reads: fresh memory costs as much as the read, since the kernel zeroes each page of it. */
export interface ReadMemory {
  take(length: number): Buffer;
  /** Takes back a buffer from `take`, or a part of such a buffer; ignores all others. */
  release(data: Uint8Array): void;
  /** Frees the buffers that were not needed since the last call. */
  freeUnused(): void;
}

export function createReadMemory(): ReadMemory {
  const free: Buffer[] = [];
  const lentBuffers = new WeakSet<ArrayBufferLike>();
  /** The number of buffers that stayed free since the last `freeUnused`. */
  let unused = 0;
  return {
    take: (length) => {
      if (length < minPooledBytes || length > maxTransferBytes) return Buffer.allocUnsafeSlow(length);
      const whole = free.pop() ?? Buffer.allocUnsafeSlow(maxTransferBytes);
      unused = Math.min(unused, free.length);
      lentBuffers.add(whole.buffer);
      return whole.subarray(0, length);
    },
    release: ({ buffer }) => {
      if (free.length < maxFreeBuffers && lentBuffers.delete(buffer)) free.push(Buffer.from(buffer));
    },
    freeUnused: () => {
      free.splice(0, unused);
      unused = free.length;
    },
  };
}
