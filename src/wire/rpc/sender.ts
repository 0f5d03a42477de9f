import { writeSync, writevSync } from 'node:fs';
import type { Socket } from 'node:net';
import { descriptorOf } from '#base/socket-descriptor.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** Large enough for the small calls of one turn. Larger data are not copied into the slab. */
const slabBytes = 256 * 1024;
/** Data up to this length are copied into the slab: the kernel takes one buffer faster than two. */
const maxCopiedBytes = 4096;

/** `args` is a parameter so that no closure is needed for each call. */
export type Encode<A> = (writer: XdrWriter, args: A) => Uint8Array | undefined;

interface Part {
  readonly bytes: Uint8Array;
  readonly onSent: (() => void) | undefined;
}

/**
 * Sends all records of one turn of the event loop with one system call, since the system call is most of the cost of a small RPC. Records are
 * encoded one after the other in a slab. The slab is reused once the kernel has taken all of it.
 */
export interface Sender {
  /**
   * Encodes one record; the next flush sends it. The bytes that `encode` returns are the data of the record's last opaque, whose
   * length `encode` has written; they are sent without a copy.
   */
  addRecord<A>(encode: Encode<A>, args: A): void;
  /** Sends at once, for callers that add no more records in this turn. */
  flush(): void;
  /** Sends at the end of this turn, together with all records that are added until then. */
  flushSoon(): void;
  /** Bytes that the kernel has not taken yet, including those of this turn. */
  readonly queued: number;
}

export interface SenderOptions {
  readonly onError: (cause: unknown) => void;
  /** Called when uncopied data have been sent and their memory may be reused. */
  readonly onSent?: ((data: Uint8Array) => void) | undefined;
  /** The socket is plain TCP, and no TLS will be started on it. */
  readonly isPlainTcp: boolean;
}

export function createSender(socket: Socket, { onError, onSent, isPlainTcp }: SenderOptions): Sender {
  const fd = isPlainTcp ? descriptorOf(socket) : undefined;
  let slab = new XdrWriter(slabBytes);
  let sentEnd = 0;
  let parts: Part[] = [];
  let scheduled = false;
  /** The number of bytes in `parts`. */
  let partBytes = 0;

  function endPart(): void {
    if (slab.offset > sentEnd) parts.push({ bytes: slab.buffer.subarray(sentEnd, slab.offset), onSent: undefined });
    sentEnd = slab.offset;
  }

  function flush(): void {
    scheduled = false;
    if (socket.destroyed) {
      parts = [];
      partBytes = 0;
      sentEnd = slab.offset;
      return;
    }
    // Data that are queued in the socket must go first.
    if (fd !== undefined && socket.writableLength === 0) writeDirectly(fd);
    if (parts.length > 0 || slab.offset > sentEnd) {
      endPart();
      writeToSocket(parts);
      parts = [];
      partBytes = 0;
    }
    resetSlab();
  }

  /** Usually everything is one buffer, and the kernel takes it at once. */
  function writeDirectly(to: number): void {
    if (parts.length === 0) {
      if (slab.offset > sentEnd) sentEnd += writeNow(to, slab.buffer, sentEnd, slab.offset);
      return;
    }
    endPart();
    parts = writeParts(to, parts);
    if (parts.length === 0) partBytes = 0;
  }

  function writeToSocket(rest: readonly Part[]): void {
    if (rest.length > 1) socket.cork();
    for (const { bytes, onSent: sent } of rest) socket.write(bytes, sent);
    if (rest.length > 1) socket.uncork();
  }

  /** Usually the kernel takes everything at once, and the slab is free again. Otherwise the socket still uses the slab. */
  function resetSlab(): void {
    if (socket.writableLength === 0) slab.offset = sentEnd = 0;
    else if (slab.offset > slabBytes / 2) {
      slab = new XdrWriter(slabBytes);
      sentEnd = 0;
    }
  }

  function encodeRecord<A>(encode: Encode<A>, args: A): void {
    const markAt = slab.offset;
    slab.u32(0);
    const data = encode(slab, args);
    const padded = data === undefined ? 0 : (data.length + 3) & ~3;
    // Set the mark before `endPart`, since the slab may get another buffer when it grows.
    slab.view.setUint32(markAt, (0x8000_0000 | (slab.offset - markAt - 4 + padded)) >>> 0);
    if (data === undefined) return;
    if (data.length <= maxCopiedBytes) {
      slab.fixedOpaque(data);
      return;
    }
    endPart();
    parts.push({ bytes: data, onSent: onSent && (() => onSent(data)) });
    partBytes += data.length;
    slab.reserve(4);
    slab.pad(data.length);
  }

  const flushSafely = (): void => {
    try {
      flush();
    } catch (cause) {
      onError(cause);
    }
  };

  return {
    addRecord: (encode, args) => {
      const before = slab.offset;
      try {
        encodeRecord(encode, args);
      } catch (cause) {
        slab.offset = before;
        throw cause;
      }
    },
    flush: flushSafely,
    flushSoon: () => {
      if (scheduled) return;
      scheduled = true;
      process.nextTick(flushSafely);
    },
    get queued() {
      return socket.writableLength + partBytes + slab.offset - sentEnd;
    },
  };
}

/**
 * Writes straight to the descriptor: a write through a Node socket costs as much again as the system call. If the write fails,
 * nothing was written; the socket then finds the error itself and reports it.
 */

/** Returns the number of bytes that the kernel took. */
function writeNow(fd: number, buffer: Buffer, from: number, end: number): number {
  try {
    return writeSync(fd, buffer, from, end - from);
  } catch {
    return 0;
  }
}

/** Returns the parts that the kernel did not take. */
function writeParts(fd: number, parts: Part[]): Part[] {
  let taken = 0;
  try {
    taken = writevSync(
      fd,
      parts.map(({ bytes }) => bytes),
    );
  } catch {
    return parts;
  }
  const rest: Part[] = [];
  for (const { bytes, onSent: sent } of parts) {
    if (taken < bytes.length) rest.push({ bytes: taken === 0 ? bytes : bytes.subarray(taken), onSent: sent });
    else sent?.();
    taken = Math.max(0, taken - bytes.length);
  }
  return rest;
}
