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
  /** Called with a whole record. The receiver reuses the bytes after the call. */
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
   * Whether a record for `onHead` may come next. If so, the first read is small: data that are read together with the header have
   * to be copied.
   */
  readonly expectsHead?: () => boolean;
  /** Memory is low: free the buffer of a long record at once instead of keeping it for the next. */
  readonly isMemoryLow?: () => boolean;
}

/** The destination of received bytes. */
export interface Input {
  /** The buffer for the next read: the rest of the caller's own buffer if the data of a direct read come next. */
  buffer(): Buffer;
  /** Reports the number of bytes written to `buffer`. Throws if the connection is unusable. */
  received(bytes: number): void;
  /** For bytes that were received into another buffer. */
  push(chunk: Buffer): void;
}

/** Record marking of RPC over TCP (RFC 5531, section 11). */
export interface Receiver extends Input {
  /** The memory in use for long records, in addition to the initial buffer of every receiver. */
  readonly heldBytes: number;
  /** A record was received only in part. */
  readonly isMidRecord: boolean;
  /** The number of records received so far. */
  readonly records: number;
  readonly bytes: number;
}

const initialBufferSize = 128 * 1024;
/** The receiver frees the buffer of a long record after this many rounds without another long record. */
const maxRoundsWithoutLongRecord = 64;
/** Enough for the header of a direct read, for some short records, and for a whole reply to a READ of 4 KiB. */
const smallBufferSize = 4096 + 512;
/** For shorter records, a copy is cheaper than a direct read. */
const minDirectReadBytes = 16 * 1024;

export function createReceiver(options: ReceiverOptions): Receiver {
  const { maxRecord, onRecord, onHead, expectsHead = () => false, isMemoryLow = () => false } = options;
  let buffer = Buffer.allocUnsafeSlow(initialBufferSize);
  let view = new DataView(buffer.buffer);
  let smallBuffer = buffer.subarray(0, smallBufferSize);
  /** Bytes that were received and not processed: [at, have). */
  let processedEnd = 0;
  let receivedEnd = 0;
  let roundsWithoutLongRecord = 0;
  let records = 0;
  let totalBytes = 0;
  /** The fragments of a record before the last one. */
  let reassembly: Reassembly | undefined;
  let direct: { readonly read: DirectRead; position: number; remaining: number; padding: number } | undefined;

  /** Call it only while bytes are being processed: at other times Node already has the buffer for the next read. */
  function switchBuffer(memory: Buffer<ArrayBuffer>): void {
    buffer = memory;
    view = new DataView(memory.buffer);
    smallBuffer = memory.subarray(0, smallBufferSize);
  }

  /** Makes room for the rest of the record that begins at `at`. */
  function makeRoom(length: number): void {
    if (processedEnd + length <= buffer.length) return;
    const target = length <= buffer.length ? buffer : Buffer.allocUnsafeSlow(length + initialBufferSize);
    buffer.copy(target, 0, processedEnd, receivedEnd);
    if (target !== buffer) switchBuffer(target);
    receivedEnd -= processedEnd;
    processedEnd = 0;
  }

  function beginDirect(to: DirectRead, recordEnd: number): void {
    const here = Math.min(receivedEnd - to.from, to.target.length);
    buffer.copy(to.target, 0, to.from, to.from + here);
    direct = {
      read: to,
      position: here,
      remaining: to.target.length - here,
      padding: recordEnd - to.from - to.target.length,
    };
    processedEnd = to.from + here;
    finishDirect();
  }

  function finishDirect(): void {
    if (direct === undefined || direct.remaining > 0) return;
    const skipped = Math.min(direct.padding, receivedEnd - processedEnd);
    processedEnd += skipped;
    direct.padding -= skipped;
    if (direct.padding > 0) return;
    const { read: to } = direct;
    direct = undefined;
    records++;
    to.done();
  }

  /** Returns false if more bytes are needed. */
  function readRecord(): boolean {
    if (receivedEnd - processedEnd < 4) return false;
    const mark = view.getUint32(processedEnd);
    const length = mark & 0x7fff_ffff;
    const isLast = mark >>> 31 === 1;
    if (length + (reassembly?.length ?? 0) > maxRecord)
      throw new RpcError(`a record of ${length} bytes exceeds the limit of ${maxRecord}`, { failure: 'garbled' });
    if (length > initialBufferSize) roundsWithoutLongRecord = 0;
    const from = processedEnd + 4;
    const end = from + length;
    if (end > receivedEnd) {
      const to =
        isLast && reassembly === undefined && length >= minDirectReadBytes
          ? onHead?.(buffer, view, from, receivedEnd, length)
          : undefined;
      if (to !== undefined) beginDirect(to, end);
      else makeRoom(4 + length);
      return false;
    }
    processedEnd = end;
    if (isLast) records++;
    if (isLast && reassembly === undefined) onRecord(buffer, view, from, end);
    else {
      reassembly ??= createReassembly();
      reassembly.add(buffer, from, end);
      if (isLast) {
        const { buffer: whole, length: size } = reassembly;
        reassembly = undefined;
        onRecord(whole(), new DataView(whole().buffer), 0, size);
      }
    }
    return true;
  }

  function processReceived(): void {
    finishDirect();
    if (direct === undefined) while (readRecord());
    if (processedEnd === receivedEnd) {
      processedEnd = receivedEnd = 0;
      if (
        buffer.length > initialBufferSize &&
        (++roundsWithoutLongRecord > maxRoundsWithoutLongRecord || isMemoryLow())
      )
        switchBuffer(Buffer.allocUnsafeSlow(initialBufferSize));
    } else if (receivedEnd === buffer.length) makeRoom(buffer.length);
  }

  const receiver: Receiver = {
    buffer: () =>
      direct !== undefined && direct.remaining > 0
        ? direct.read.target.subarray(direct.position, direct.position + direct.remaining)
        : // Usually the whole buffer is free, so this saves one view per read.
          receivedEnd === 0
          ? expectsHead()
            ? smallBuffer
            : buffer
          : buffer.subarray(receivedEnd),
    received: (bytes) => {
      totalBytes += bytes;
      if (direct !== undefined && direct.remaining > 0) {
        direct.position += bytes;
        direct.remaining -= bytes;
      } else receivedEnd += bytes;
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
      return buffer.length - initialBufferSize + (reassembly?.size ?? 0);
    },
    get isMidRecord() {
      return receivedEnd > processedEnd || reassembly !== undefined || direct !== undefined;
    },
    get records() {
      return records;
    },
    get bytes() {
      return totalBytes;
    },
  };
  return receiver;
}

interface Reassembly {
  readonly length: number;
  /** The size of its buffer. */
  readonly size: number;
  add(buffer: Buffer, from: number, end: number): void;
  buffer(): Buffer;
}

/** Grows by doubling, so that a sender of tiny fragments cannot make the receiver copy the same bytes again and again. */
function createReassembly(): Reassembly {
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
    buffer: () => buffer,
  };
}
