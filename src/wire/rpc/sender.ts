import { writeSync, writevSync } from 'node:fs';
import type { Socket } from 'node:net';
import { descriptorOf } from '#base/socket-descriptor.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** Large enough for the small calls of one turn; larger data are sent beside it, uncopied. */
const slabSize = 256 * 1024;
/** Data up to this length are copied after their call: the kernel takes one buffer faster than two. */
const copiedData = 4096;

/** `about` is a parameter so that no closure is needed for each call. */
export type Encode<A> = (writer: XdrWriter, about: A) => Uint8Array | undefined;

interface Part {
  readonly bytes: Uint8Array;
  readonly sent: (() => void) | undefined;
}

/**
 * Sends all records of one turn of the event loop with one system call, which is most of what a small RPC costs. Records are
 * encoded one after the other in a slab. The slab is reused once the kernel has taken all of it.
 */
export interface Sender {
  /**
   * Encodes one record; the next flush sends it. The bytes that `encode` returns are the data of the record's last opaque, whose
   * length `encode` has written; they are sent without a copy.
   */
  addRecord<A>(encode: Encode<A>, about: A): void;
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
  let slab = new XdrWriter(slabSize);
  let sentTo = 0;
  let parts: Part[] = [];
  let scheduled = false;
  /** The number of bytes in `parts`. */
  let partBytes = 0;

  function endPart(): void {
    if (slab.offset > sentTo) parts.push({ bytes: slab.buffer.subarray(sentTo, slab.offset), sent: undefined });
    sentTo = slab.offset;
  }

  function flush(): void {
    scheduled = false;
    if (socket.destroyed) {
      parts = [];
      partBytes = 0;
      sentTo = slab.offset;
      return;
    }
    // Data that are queued in the socket must go first.
    if (fd !== undefined && socket.writableLength === 0) writeDirectly(fd);
    if (parts.length > 0 || slab.offset > sentTo) {
      endPart();
      queue(parts);
      parts = [];
      partBytes = 0;
    }
    reuse();
  }

  /** Usually everything is one buffer, and the kernel takes it at once. */
  function writeDirectly(to: number): void {
    if (parts.length === 0) {
      if (slab.offset > sentTo) sentTo += writeNow(to, slab.buffer, sentTo, slab.offset);
      return;
    }
    endPart();
    parts = writeParts(to, parts);
    if (parts.length === 0) partBytes = 0;
  }

  function queue(rest: readonly Part[]): void {
    if (rest.length > 1) socket.cork();
    for (const { bytes, sent } of rest) socket.write(bytes, sent);
    if (rest.length > 1) socket.uncork();
  }

  /** The kernel usually takes everything at once, and the slab is free again; otherwise it belongs to the socket. */
  function reuse(): void {
    if (socket.writableLength === 0) slab.offset = sentTo = 0;
    else if (slab.offset > slabSize / 2) {
      slab = new XdrWriter(slabSize);
      sentTo = 0;
    }
  }

  function record<A>(encode: Encode<A>, about: A): void {
    const markAt = slab.offset;
    slab.u32(0);
    const data = encode(slab, about);
    const padded = data === undefined ? 0 : (data.length + 3) & ~3;
    // Do this before `endPart`: the slab may move when it grows.
    slab.view.setUint32(markAt, (0x8000_0000 | (slab.offset - markAt - 4 + padded)) >>> 0);
    if (data === undefined) return;
    if (data.length <= copiedData) {
      slab.fixedOpaque(data);
      return;
    }
    endPart();
    parts.push({ bytes: data, sent: onSent && (() => onSent(data)) });
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
    addRecord: (encode, about) => {
      const before = slab.offset;
      try {
        record(encode, about);
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
      return socket.writableLength + partBytes + slab.offset - sentTo;
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
  for (const { bytes, sent } of parts) {
    if (taken < bytes.length) rest.push({ bytes: taken === 0 ? bytes : bytes.subarray(taken), sent });
    else sent?.();
    taken = Math.max(0, taken - bytes.length);
  }
  return rest;
}
