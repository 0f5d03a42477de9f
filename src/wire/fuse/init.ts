import { type InitFlag, initFlag, pageSize, protocol } from './abi.ts';
import type { ReplyBuffer } from './encode.ts';
import { type Message, requireBytes, u32 } from './message.ts';

/** fuse_init_in: the version and flags that the kernel supports. */
export interface InitRequest {
  readonly major: number;
  readonly minor: number;
  readonly maxReadahead: number;
  has(flag: InitFlag): boolean;
}

/** The options that the file system requests. Flags that the kernel does not support are left out. */
export interface InitOptions {
  readonly flags: readonly InitFlag[];
  /** The maximum size of one WRITE and of one READ. */
  readonly maxWrite: number;
  readonly maxReadahead: number;
  /** The limit on background requests (readahead, parallel direct I/O) in flight. */
  readonly maxBackground: number;
  /** The resolution of timestamps, in ns. */
  readonly timeGranularity: number;
}

/** The negotiated version and flags. */
export interface InitResult {
  readonly minor: number;
  readonly flags: readonly InitFlag[];
}

const initReplySize = 64;

export function readInitRequest(message: Message): InitRequest {
  requireBytes(message, 16);
  const [low, secondWordOffset] = [u32(message, 12), 16];
  // Kernels before 6.0 send a shorter request.
  const isLong = message.end >= 40 + secondWordOffset + 4;
  const high = isLong && isSet(low, initFlag.initExt) ? u32(message, secondWordOffset) : 0;
  return {
    major: u32(message, 0),
    minor: u32(message, 4),
    maxReadahead: u32(message, 8),
    has: (flag) => (initFlag[flag] < 32 ? isSet(low, initFlag[flag]) : isSet(high, initFlag[flag] - 32)),
  };
}

const isSet = (word: number, bit: number): boolean => ((word >>> bit) & 1) === 1;

/** A newer kernel adapts to our version; one that is older than our oldest version is not supported. */
export const isSupported = ({ major, minor }: InitRequest): boolean =>
  major > protocol.major || (major === protocol.major && minor >= protocol.oldestMinor);

export function negotiate(offer: InitRequest, options: InitOptions): InitResult {
  const wanted: readonly InitFlag[] = [...options.flags, 'initExt', 'maxPages', 'bigWrites'];
  return {
    minor: Math.min(offer.minor, protocol.newestMinor),
    flags: wanted.filter((flag) => offer.has(flag)),
  };
}

/** A kernel with a newer major version reads only our version, and sends INIT again. */
export function putInitReply(
  out: ReplyBuffer,
  at: number,
  offer: InitRequest,
  { minor, flags }: InitResult,
  options: InitOptions,
): number {
  const { buffer, view } = out;
  buffer.fill(0, at, at + initReplySize);
  const flagWord = (from: number): number =>
    flags.reduce((sum, flag) => {
      const bit = initFlag[flag] - from;
      return bit >= 0 && bit < 32 ? sum | (1 << bit) : sum;
    }, 0) >>> 0;
  view.setUint32(at, protocol.major, true);
  view.setUint32(at + 4, minor, true);
  view.setUint32(at + 8, Math.min(offer.maxReadahead, options.maxReadahead), true);
  view.setUint32(at + 12, flagWord(0), true);
  view.setUint16(at + 16, options.maxBackground, true);
  view.setUint16(at + 18, Math.floor((options.maxBackground * 3) / 4), true);
  view.setUint32(at + 20, options.maxWrite, true);
  view.setUint32(at + 24, options.timeGranularity, true);
  view.setUint16(at + 28, options.maxWrite / pageSize, true);
  view.setUint32(at + 32, flagWord(32), true);
  return at + initReplySize;
}
