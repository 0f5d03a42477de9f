import { inHeaderSize } from './abi.ts';
import { Errno, type ErrnoName } from './errno.ts';

/** One request in memory. The view covers the same bytes. */
export interface Message {
  readonly buffer: Buffer;
  readonly view: DataView;
  /** The offset of the end of the request. */
  readonly end: number;
}

const twoTo32 = 0x1_0000_0000;

/** Rounds beyond 2^53: no node or file handle has such a number. For file offsets see `fileOffset`. */
const readU64 = (view: DataView, at: number): number =>
  view.getUint32(at, true) + view.getUint32(at + 4, true) * twoTo32;

export function setU64(view: DataView, at: number, value: number): void {
  view.setUint32(at, value >>> 0, true);
  view.setUint32(at + 4, value / twoTo32, true);
}

export const header = {
  length: ({ view }: Message): number => view.getUint32(0, true),
  opcode: ({ view }: Message): number => view.getUint32(4, true),
  node: ({ view }: Message): number => readU64(view, 16),
  uid: ({ view }: Message): number => view.getUint32(24, true),
  gid: ({ view }: Message): number => view.getUint32(28, true),
  pid: ({ view }: Message): number => view.getUint32(32, true),
} as const;

/** The offset of the arguments. Bytes after the end of the request are not from the kernel. */
const argumentsOffset = inHeaderSize;

export function requireBytes({ end }: Message, bytes: number): void {
  if (end < argumentsOffset + bytes) throw new Errno('EPROTO');
}

export const u32 = ({ view }: Message, at: number): number => view.getUint32(argumentsOffset + at, true);
export const u64 = ({ view }: Message, at: number): number => readU64(view, argumentsOffset + at);

/** Reads an offset in a file. No file is longer than a double can represent exactly: larger offsets are refused, not rounded. */
export function fileOffset(message: Message, at: number, length = 0, refusal: ErrnoName = 'EFBIG'): number {
  const from = u64(message, at);
  if (from + length > Number.MAX_SAFE_INTEGER) throw new Errno(refusal);
  return from;
}

export const bigU64 = ({ view }: Message, at: number): bigint => view.getBigUint64(argumentsOffset + at, true);

/** Reads the bytes up to the next NUL, from offset `at` of the arguments. */
export function readName({ buffer, end }: Message, at: number): Buffer {
  const from = argumentsOffset + at;
  const to = buffer.indexOf(0, from);
  if (from > end || to < 0 || to >= end) throw new Errno('EPROTO');
  return buffer.subarray(from, to);
}

export function readBytes({ buffer, end }: Message, at: number, length: number): Buffer {
  const from = argumentsOffset + at;
  if (from + length > end) throw new Errno('EPROTO');
  return buffer.subarray(from, from + length);
}
