import { hash } from 'node:crypto';
import type { ByteString } from './names.ts';

/** What a handle says: which inode, which of those that had its number, and by which directories it was reached. */
export interface Origin {
  readonly ino: bigint;
  /** When the inode was made, in nanoseconds: numbers are used again, these are not. 0 where the file system has none. */
  readonly birth: bigint;
  /** One byte for each directory between the root and it, from their inode numbers: so it is found after a restart. */
  readonly trail: Uint8Array;
}

export interface Handles {
  make(origin: Origin): ByteString;
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
const digestLength = 32;

/** Handles that only the holder of the key can make. */
export function createHandles(key: Uint8Array): Handles {
  const code = createShortCode(key);
  const scratch = Buffer.alloc(headLength + maxTrail + codeLength);
  return {
    make: ({ ino, birth, trail }) => {
      const length = headLength + trail.length;
      scratch[0] = version;
      scratch[2] = trail.length;
      scratch.writeBigUInt64BE(ino, 4);
      scratch.writeBigUInt64BE(BigInt.asUintN(64, birth), 12);
      scratch.set(trail, headLength);
      scratch.write(code(scratch.subarray(0, length)), length, 'latin1');
      // In one piece: a sum of strings keeps its parts.
      return scratch.toString('latin1', 0, length + codeLength);
    },
    open: (bytes) => {
      const handle = Buffer.from(bytes);
      const length = handle.length - headLength - codeLength;
      if (length < 0 || length > maxTrail || handle[0] !== version || handle[2] !== length) return undefined;
      const body = handle.subarray(0, headLength + length);
      if (!isSame(code(body), handle, body.length, handle.length)) return undefined;
      return {
        ino: handle.readBigUInt64BE(4),
        birth: handle.readBigUInt64BE(12),
        trail: handle.subarray(headLength, headLength + length),
      };
    },
  };
}

/** HMAC-SHA-256 (RFC 2104). */
export function createCode(key: Uint8Array): (message: Uint8Array) => Buffer {
  const digest = createDigest(key);
  return (message) => Buffer.from(digest(message), 'latin1');
}

function createShortCode(key: Uint8Array): (message: Uint8Array) => ByteString {
  const digest = createDigest(key);
  return (message) => digest(message).slice(0, codeLength);
}

/**
 * By hand: Node's own HMAC looks its algorithm up each time, which makes it ten times slower. As a string: a new Buffer
 * for the result costs twice as much as the hash.
 */
function createDigest(key: Uint8Array): (message: Uint8Array) => ByteString {
  const padded = (byte: number, room: number): Buffer => {
    const block = Buffer.alloc(blockLength + room);
    block.set(key.length > blockLength ? hash('sha256', key, 'buffer') : key);
    for (let i = 0; i < blockLength; i++) block[i] = (block[i] as number) ^ byte;
    return block;
  };
  const [inner, outer] = [padded(0x36, headLength + maxTrail), padded(0x5c, digestLength)];
  const innerWith = (message: Uint8Array): Buffer => {
    if (blockLength + message.length > inner.length) return Buffer.concat([inner.subarray(0, blockLength), message]);
    inner.set(message, blockLength);
    return inner.subarray(0, blockLength + message.length);
  };
  return (message) => {
    outer.write(hash('sha256', innerWith(message), 'binary'), blockLength, 'latin1');
    return hash('sha256', outer, 'binary');
  };
}

/** In the same time wherever they differ: else a code could be guessed byte by byte. */
export function isSame(expected: ByteString, bytes: Uint8Array, from: number, end: number): boolean {
  if (expected.length !== end - from) return false;
  let difference = 0;
  for (let i = 0; i < expected.length; i++) difference |= expected.charCodeAt(i) ^ (bytes[from + i] as number);
  return difference === 0;
}

/** The byte that stands for a directory in a trail. */
export const trailByte = (ino: bigint): number => {
  const low = Number(BigInt.asUintN(32, ino));
  // Neighbours in one directory often have numbers one apart; all bits shall count.
  return (Math.imul(low, 0x9e37_79b1) >>> 24) ^ Number(BigInt.asUintN(8, ino >> 32n));
};
