import { RpcError } from './errors.ts';

/** A reply whose data go straight into the caller's buffer, not into the receiver's first. */
export interface DirectRead {
  /** The offset of the data in the received bytes. */
  readonly from: number;
  readonly target: Buffer;
  /** Called when all data and their padding have arrived. */
  done(): void;
}

export interface ReceiverOptions {
  /** The longest record that the receiver accepts. */
  readonly maxRecord: number;
  /** Called with a whole record. The receiver reuses the bytes when it returns. */
  readonly onRecord: (buffer: Buffer, view: DataView, from: number, end: number) => void;
  /** Called with the beginning of a long record of `length` bytes. Undefined: receive it like any other record. */
  readonly onHead?: (
    buffer: Buffer,
    view: DataView,
    from: number,
    have: number,
    length: number,
  ) => DirectRead | undefined;
  /**
   * Whether such a record may come next. If so, the first read is small: data that are read together with the header have to be
   * copied.
   */
  readonly expectsHead?: () => boolean;
  /** Memory is low: free the buffer of a long record at once instead of keeping it for the next. */
  readonly isMemoryLow?: () => boolean;
}

/** The destination of received bytes. */
export interface Input {
  /** The buffer for the next read: the rest of the caller's own buffer if the data of a direct read come next. */
  buffer(): Buffer;
  /** The number of bytes written to `buffer`. Throws if the connection is unusable. */
  received(bytes: number): void;
  /** For bytes that were received into another buffer. */
  push(chunk: Buffer): void;
}

/** Record marking of RPC over TCP (RFC 5531, section 11). */
export interface Receiver extends Input {
  /** The memory in use for long records, beyond what every receiver has. */
  readonly heldBytes: number;
  /** A record was received only in part. */
  readonly isMidRecord: boolean;
  /** The number of records received so far. */
  readonly records: number;
  readonly bytes: number;
}

const initialSize = 128 * 1024;
/** The receiver frees the buffer of a long record after this many rounds without another long record. */
const maxRoundsWithoutLong = 64;
/** Enough for the header of a direct read, for some short records, and for a whole reply to a READ of 4 KiB. */
const smallBufferSize = 4096 + 512;
/** Below this length, a copy is cheaper than a direct read. */
const directFrom = 16 * 1024;

export function createReceiver(options: ReceiverOptions): Receiver {
  const { maxRecord, onRecord, onHead, expectsHead = () => false, isMemoryLow = () => false } = options;
  let buffer = Buffer.allocUnsafeSlow(initialSize);
  let view = new DataView(buffer.buffer);
  let smallBuffer = buffer.subarray(0, smallBufferSize);
  /** Bytes that were received and not processed: [at, have). */
  let at = 0;
  let have = 0;
  let roundsWithoutLong = 0;
  let records = 0;
  let total = 0;
  /** The fragments of a record before the last one. */
  let assembly: Assembly | undefined;
  let direct: { readonly to: DirectRead; position: number; rest: number; padding: number } | undefined;

  /** Call it only while bytes are being processed: at other times Node already has the buffer for the next read. */
  function switchBuffer(memory: Buffer<ArrayBuffer>): void {
    buffer = memory;
    view = new DataView(memory.buffer);
    smallBuffer = memory.subarray(0, smallBufferSize);
  }

  /** Makes room for the rest of the record that begins at `at`. */
  function makeRoom(length: number): void {
    if (at + length <= buffer.length) return;
    const target = length <= buffer.length ? buffer : Buffer.allocUnsafeSlow(length + initialSize);
    buffer.copy(target, 0, at, have);
    if (target !== buffer) switchBuffer(target);
    have -= at;
    at = 0;
  }

  function beginDirect(to: DirectRead, recordEnd: number): void {
    const here = Math.min(have - to.from, to.target.length);
    buffer.copy(to.target, 0, to.from, to.from + here);
    direct = { to, position: here, rest: to.target.length - here, padding: recordEnd - to.from - to.target.length };
    at = to.from + here;
    finishDirect();
  }

  function finishDirect(): void {
    if (direct === undefined || direct.rest > 0) return;
    const skipped = Math.min(direct.padding, have - at);
    at += skipped;
    direct.padding -= skipped;
    if (direct.padding > 0) return;
    const { to } = direct;
    direct = undefined;
    records++;
    to.done();
  }

  /** Returns false if more bytes are needed. */
  function readRecord(): boolean {
    if (have - at < 4) return false;
    const mark = view.getUint32(at);
    const length = mark & 0x7fff_ffff;
    const isLast = mark >>> 31 === 1;
    if (length + (assembly?.length ?? 0) > maxRecord)
      throw new RpcError(`a record of ${length} bytes exceeds the limit of ${maxRecord}`, { failure: 'garbled' });
    if (length > initialSize) roundsWithoutLong = 0;
    const from = at + 4;
    const end = from + length;
    if (end > have) {
      const to =
        isLast && assembly === undefined && length >= directFrom
          ? onHead?.(buffer, view, from, have, length)
          : undefined;
      if (to !== undefined) beginDirect(to, end);
      else makeRoom(4 + length);
      return false;
    }
    at = end;
    if (isLast) records++;
    if (isLast && assembly === undefined) onRecord(buffer, view, from, end);
    else {
      assembly ??= createAssembly();
      assembly.add(buffer, from, end);
      if (isLast) {
        const { whole, length: size } = assembly;
        assembly = undefined;
        onRecord(whole(), new DataView(whole().buffer), 0, size);
      }
    }
    return true;
  }

  function processReceived(): void {
    finishDirect();
    if (direct === undefined) while (readRecord());
    if (at === have) {
      at = have = 0;
      if (buffer.length > initialSize && (++roundsWithoutLong > maxRoundsWithoutLong || isMemoryLow()))
        switchBuffer(Buffer.allocUnsafeSlow(initialSize));
    } else if (have === buffer.length) makeRoom(buffer.length);
  }

  const receiver: Receiver = {
    buffer: () =>
      direct !== undefined && direct.rest > 0
        ? direct.to.target.subarray(direct.position, direct.position + direct.rest)
        : // Usually the whole buffer is free, so this saves one view per read.
          have === 0
          ? expectsHead()
            ? smallBuffer
            : buffer
          : buffer.subarray(have),
    received: (bytes) => {
      total += bytes;
      if (direct !== undefined && direct.rest > 0) {
        direct.position += bytes;
        direct.rest -= bytes;
      } else have += bytes;
      processReceived();
    },
    push: (chunk) => {
      for (let from = 0; from < chunk.length; ) {
        const copiedBytes = chunk.copy(receiver.buffer(), 0, from);
        from += copiedBytes;
        receiver.received(copiedBytes);
      }
    },
    get heldBytes() {
      return buffer.length - initialSize + (assembly?.size ?? 0);
    },
    get isMidRecord() {
      return have > at || assembly !== undefined || direct !== undefined;
    },
    get records() {
      return records;
    },
    get bytes() {
      return total;
    },
  };
  return receiver;
}

interface Assembly {
  readonly length: number;
  /** The size of its buffer. */
  readonly size: number;
  add(buffer: Buffer, from: number, end: number): void;
  whole(): Buffer;
}

/** Grows by doubling, so that a sender of tiny fragments cannot make the receiver copy the same bytes again and again. */
function createAssembly(): Assembly {
  let buffer = Buffer.allocUnsafeSlow(4096);
  let length = 0;
  return {
    get length() {
      return length;
    },
    get size() {
      return buffer.length;
    },
    add: (from, start, end) => {
      const size = end - start;
      if (length + size > buffer.length) {
        const larger = Buffer.allocUnsafeSlow(Math.max(buffer.length * 2, length + size));
        buffer.copy(larger, 0, 0, length);
        buffer = larger;
      }
      from.copy(buffer, length, start, end);
      length += size;
    },
    whole: () => buffer,
  };
}
