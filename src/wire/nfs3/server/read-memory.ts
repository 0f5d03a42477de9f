import { maxTransfer } from '../structures.ts';

/** More than these at once are rare, and go back to the system. */
const kept = 32;
/** Smaller ones come from memory that the process has already. */
const large = 64 * 1024;

/** Memory for large reads, used again: fresh memory costs as much as the read, since the system clears each page of it. */
export interface ReadMemory {
  take(length: number): Buffer;
  /** Of what `take` gave, or a part of it; anything else is ignored. */
  giveBack(data: Uint8Array): void;
  /** Lets go what was not needed since the last time. */
  freeUnused(): void;
}

export function createReadMemory(): ReadMemory {
  const free: Buffer[] = [];
  const ours = new WeakSet<ArrayBufferLike>();
  /** So many were never taken since the last time it was tidied. */
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
