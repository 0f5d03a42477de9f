import { hash } from 'node:crypto';

/** What a handle says: which inode, which of those that had its number, and by which directories it was reached. */
export interface Origin {
  readonly ino: bigint;
  /** When the inode was made, in nanoseconds: numbers are used again, these are not. 0 where the file system has none. */
  readonly birth: bigint;
  /** One byte for each directory between the root and it, from their inode numbers: so it is found after a restart. */
  readonly trail: Uint8Array;
}

export interface Handles {
  make(origin: Origin): Buffer;
  /** Undefined: not one of ours. */
  open(handle: Uint8Array): Origin | undefined;
}

/*
 * version (1), reserved (1), length of the trail (1), reserved (1), inode (8), birth (8), trail, code (16)
 */
const version = 1;
const headLength = 20;
const codeLength = 16;
/** A handle has at most 64 bytes. */
export const maxTrail = 64 - headLength - codeLength;

const blockLength = 64;

/** Handles that only the holder of the key can make. */
export function createHandles(key: Uint8Array): Handles {
  const code = createCode(key);
  return {
    make: ({ ino, birth, trail }) => {
      const handle = Buffer.alloc(headLength + trail.length + codeLength);
      handle[0] = version;
      handle[2] = trail.length;
      handle.writeBigUInt64BE(ino, 4);
      handle.writeBigUInt64BE(BigInt.asUintN(64, birth), 12);
      handle.set(trail, headLength);
      const body = handle.subarray(0, headLength + trail.length);
      handle.set(code(body).subarray(0, codeLength), body.length);
      return handle;
    },
    open: (bytes) => {
      const handle = Buffer.from(bytes);
      const length = handle.length - headLength - codeLength;
      if (length < 0 || length > maxTrail || handle[0] !== version || handle[2] !== length) return undefined;
      const body = handle.subarray(0, headLength + length);
      if (!isSame(code(body).subarray(0, codeLength), handle.subarray(body.length))) return undefined;
      return {
        ino: handle.readBigUInt64BE(4),
        birth: handle.readBigUInt64BE(12),
        trail: handle.subarray(headLength, headLength + length),
      };
    },
  };
}

/** HMAC-SHA-256 (RFC 2104) by hand: Node's own looks its algorithm up each time, which makes it ten times slower. */
export function createCode(key: Uint8Array): (message: Uint8Array) => Buffer {
  const pad = (byte: number): Buffer => {
    const block = Buffer.alloc(blockLength);
    block.set(key.length > blockLength ? hash('sha256', key, 'buffer') : key);
    for (let i = 0; i < blockLength; i++) block[i] = (block[i] as number) ^ byte;
    return block;
  };
  const [inner, outer] = [pad(0x36), Buffer.concat([pad(0x5c), Buffer.alloc(32)])];
  return (message) => {
    outer.set(hash('sha256', Buffer.concat([inner, message]), 'buffer'), blockLength);
    return hash('sha256', outer, 'buffer');
  };
}

/** In the same time wherever they differ: else a code could be guessed byte by byte. */
function isSame(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let difference = 0;
  for (let i = 0; i < a.length; i++) difference |= (a[i] as number) ^ (b[i] as number);
  return difference === 0;
}

/** The byte that stands for a directory in a trail. */
export const trailByte = (ino: bigint): number => {
  const low = Number(BigInt.asUintN(32, ino));
  // Neighbours in one directory often have numbers one apart; all bits shall count.
  return (Math.imul(low, 0x9e37_79b1) >>> 24) ^ Number(BigInt.asUintN(8, ino >> 32n));
};
