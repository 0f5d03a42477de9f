import { hash } from 'node:crypto';
import type { ByteString } from './names.ts';

/** The contents of a handle: the inode number, the birth time, and a hint for finding the file. */
export interface HandleContents {
  readonly ino: bigint;
  /**
   * The birth time of the inode in nanoseconds. Inode numbers are reused, birth times are not. 0 if the file system has no birth times.
   */
  readonly birth: bigint;
  /**
   * One byte for each directory between the root and the file, hashed from its inode number: with these the server finds the file
   * after a restart.
   */
  readonly parentHashes: Uint8Array;
}

export interface Handles {
  create(contents: HandleContents): ByteString;
  /** Undefined: this server did not create the handle. */
  open(handle: Uint8Array): HandleContents | undefined;
}

/*
 * version (1), reserved (1), length of the parent hashes (1), reserved (1), inode (8), birth (8), parent hashes, MAC (16)
 */
const handleVersion = 1;
const headBytes = 20;
const macBytes = 16;
/** RFC 1813 limits a handle to 64 bytes. */
export const maxParentHashes = 64 - headBytes - macBytes;

const hmacBlockBytes = 64;
const sha256Bytes = 32;

/** Creates and verifies handles. Only the holder of the key can create a valid one. */
export function createHandles(key: Uint8Array): Handles {
  const mac = createTruncatedHmac(key);
  const scratch = Buffer.alloc(headBytes + maxParentHashes + macBytes);
  return {
    create: ({ ino, birth, parentHashes }) => {
      const length = headBytes + parentHashes.length;
      scratch[0] = handleVersion;
      scratch[2] = parentHashes.length;
      scratch.writeBigUInt64BE(ino, 4);
      scratch.writeBigUInt64BE(BigInt.asUintN(64, birth), 12);
      scratch.set(parentHashes, headBytes);
      scratch.write(mac(scratch.subarray(0, length)), length, 'latin1');
      // Convert all bytes at once, since a concatenated string would keep its parts in memory.
      return scratch.toString('latin1', 0, length + macBytes);
    },
    open: (bytes) => {
      const handle = Buffer.from(bytes);
      const length = handle.length - headBytes - macBytes;
      if (length < 0 || length > maxParentHashes || handle[0] !== handleVersion || handle[2] !== length)
        return undefined;
      const body = handle.subarray(0, headBytes + length);
      if (!equalsInConstantTime(mac(body), handle, body.length, handle.length)) return undefined;
      return {
        ino: handle.readBigUInt64BE(4),
        birth: handle.readBigUInt64BE(12),
        parentHashes: handle.subarray(headBytes, headBytes + length),
      };
    },
  };
}

/** HMAC-SHA-256 (RFC 2104). */
export function createHmacSha256(key: Uint8Array): (message: Uint8Array) => Buffer {
  const digest = createDigest(key);
  return (message) => Buffer.from(digest(message), 'latin1');
}

function createTruncatedHmac(key: Uint8Array): (message: Uint8Array) => ByteString {
  const digest = createDigest(key);
  return (message) => digest(message).slice(0, macBytes);
}

/**
 * Hand-written: Node's HMAC looks up its algorithm each time, which makes it ten times slower. Returns a string: a new Buffer for
 * the result costs twice as much as the hash.
 */
function createDigest(key: Uint8Array): (message: Uint8Array) => ByteString {
  const createPaddedKey = (byte: number, room: number): Buffer => {
    const block = Buffer.alloc(hmacBlockBytes + room);
    block.set(key.length > hmacBlockBytes ? hash('sha256', key, 'buffer') : key);
    for (let i = 0; i < hmacBlockBytes; i++) block[i] = (block[i] as number) ^ byte;
    return block;
  };
  const [inner, outer] = [createPaddedKey(0x36, headBytes + maxParentHashes), createPaddedKey(0x5c, sha256Bytes)];
  const innerWith = (message: Uint8Array): Buffer => {
    if (hmacBlockBytes + message.length > inner.length)
      return Buffer.concat([inner.subarray(0, hmacBlockBytes), message]);
    inner.set(message, hmacBlockBytes);
    return inner.subarray(0, hmacBlockBytes + message.length);
  };
  return (message) => {
    outer.write(hash('sha256', innerWith(message), 'binary'), hmacBlockBytes, 'latin1');
    return hash('sha256', outer, 'binary');
  };
}

/** Compares in constant time, so that a MAC cannot be guessed byte by byte. */
export function equalsInConstantTime(expected: ByteString, bytes: Uint8Array, from: number, end: number): boolean {
  if (expected.length !== end - from) return false;
  let difference = 0;
  for (let i = 0; i < expected.length; i++) difference |= expected.charCodeAt(i) ^ (bytes[from + i] as number);
  return difference === 0;
}

/** The hash of a directory in `parentHashes`. */
export const parentHash = (ino: bigint): number => {
  const low = Number(BigInt.asUintN(32, ino));
  // Entries of one directory often have consecutive inode numbers, so mix all bits.
  return (Math.imul(low, 0x9e37_79b1) >>> 24) ^ Number(BigInt.asUintN(8, ino >> 32n));
};
