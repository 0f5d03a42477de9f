import { RpcError } from './errors.ts';

/** A reply whose data are put where the caller wants them, not into our buffer first. */
export interface DirectRead {
  /** Where in the received bytes the data begin. */
  readonly from: number;
  readonly target: Buffer;
  /** Called when all of it has arrived, with the padding behind it. */
  done(): void;
}

export interface ReceiverOptions {
  /** The longest record that is believed. */
  readonly maxRecord: number;
  /** A whole record. The bytes are ours again when it returns. */
  readonly onRecord: (buffer: Buffer, view: DataView, from: number, end: number) => void;
  /** The beginning of a long record, `length` bytes in all. Undefined: it is received as any other. */
  readonly onHead?: (
    buffer: Buffer,
    view: DataView,
    from: number,
    have: number,
    length: number,
  ) => DirectRead | undefined;
  /** Such a record may come next. Then little is read at first: what is read beyond the head has to be copied. */
  readonly expectsHead?: () => boolean;
  /** Memory is scarce: what a long record needed is let go at once, not kept for the next. */
  readonly isMemoryLow?: () => boolean;
}

/** Where bytes go as they come. */
export interface Input {
  /** Where the next bytes shall go: the rest of a caller's own buffer, when that is what comes next. */
  buffer(): Buffer;
  /** So many bytes were put into what `buffer` gave. Throws what makes the connection useless. */
  received(bytes: number): void;
  /** For bytes that could not be put where we wanted them. */
  push(chunk: Buffer): void;
}

/** Record marking of RPC over TCP (RFC 5531, section 11). */
export interface Receiver extends Input {
  /** Bytes of memory for long records, beyond what every receiver has. */
  readonly heldBytes: number;
  /** The beginning of a record is here, and its end is not. */
  readonly isMidRecord: boolean;
  /** How many came so far. */
  readonly records: number;
  readonly bytes: number;
}

const initialSize = 128 * 1024;
/** Memory for a long record is let go when so often everything had been used up and none of it was long. */
const maxRoundsWithoutLong = 64;
/** Enough for the head of a record that is looked at, for some short records, and for a whole reply to a READ of 4 KiB. */
const smallBufferSize = 4096 + 512;
/** A READ below this is copied faster than it is arranged for. */
const directFrom = 16 * 1024;

export function createReceiver(options: ReceiverOptions): Receiver {
  const { maxRecord, onRecord, onHead, expectsHead = () => false, isMemoryLow = () => false } = options;
  let buffer = Buffer.allocUnsafeSlow(initialSize);
  let view = new DataView(buffer.buffer);
  let smallBuffer = buffer.subarray(0, smallBufferSize);
  /** What has arrived and is not used up: [at, have). */
  let at = 0;
  let have = 0;
  let roundsWithoutLong = 0;
  let records = 0;
  let total = 0;
  /** Fragments of a record before its last. */
  let assembly: Assembly | undefined;
  let direct: { readonly to: DirectRead; position: number; rest: number; padding: number } | undefined;

  /** Only while something is received: before that, Node has been told already where the next bytes go. */
  function switchBuffer(memory: Buffer<ArrayBuffer>): void {
    buffer = memory;
    view = new DataView(memory.buffer);
    smallBuffer = memory.subarray(0, smallBufferSize);
  }

  /** Makes room for the rest of a record that begins at `at`. */
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

  /** False: more bytes are needed. */
  function readRecord(): boolean {
    if (have - at < 4) return false;
    const mark = view.getUint32(at);
    const length = mark & 0x7fff_ffff;
    const isLast = mark >>> 31 === 1;
    if (length + (assembly?.length ?? 0) > maxRecord)
      throw new RpcError(`a record of ${length} bytes, where at most ${maxRecord} are taken`, { failure: 'garbled' });
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
        : // Mostly all of it is free: a view less to make for each read.
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
        const taken = chunk.copy(receiver.buffer(), 0, from);
        from += taken;
        receiver.received(taken);
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
  /** Of its memory. */
  readonly size: number;
  add(buffer: Buffer, from: number, end: number): void;
  whole(): Buffer;
}

/** Grows by doubling: a sender of tiny fragments shall not make us copy what is there again and again. */
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
