import { writeSync, writevSync } from 'node:fs';
import type { Socket } from 'node:net';
import { descriptorOf } from '#base/socket-descriptor.ts';
import { XdrWriter } from '../xdr/writer.ts';

/** Large enough for the small calls of one turn; what is larger goes beside it, uncopied. */
const slabSize = 256 * 1024;
/** Data up to this are copied behind their call: one piece of memory is sent faster than two. */
const copiedData = 4096;

/** Takes what it writes about, so that no function is made for each call. */
export type Encode<A> = (writer: XdrWriter, about: A) => Uint8Array | undefined;

interface Part {
  readonly bytes: Uint8Array;
  readonly sent: (() => void) | undefined;
}

/**
 * What is sent in one turn of the event loop goes out in one system call: that call is most of what a small RPC costs.
 * Records are laid out one behind the other in a slab, which is used again once the kernel has taken all of it.
 */
export interface Sender {
  /**
   * Lays out one record, which goes with the next flush. What `encode` gives is the data of its last opaque, whose length
   * it wrote: they go uncopied.
   */
  addRecord<A>(encode: Encode<A>, about: A): void;
  /** For whoever knows that nothing more comes in this turn. */
  flush(): void;
  /** When all else of this turn is done, so that whatever that lays out goes along. */
  flushSoon(): void;
  /** Bytes that the kernel has not taken yet, those of this turn too. */
  readonly queued: number;
}

export interface SenderOptions {
  readonly onError: (cause: unknown) => void;
  /** Data that went uncopied are not needed any more; their memory may be used again. */
  readonly onSent?: ((data: Uint8Array) => void) | undefined;
  /** Nothing stands between the socket and the system's connection: no encryption, now or later. */
  readonly isPlainTcp: boolean;
}

export function createSender(socket: Socket, { onError, onSent, isPlainTcp }: SenderOptions): Sender {
  const fd = isPlainTcp ? descriptorOf(socket) : undefined;
  let slab = new XdrWriter(slabSize);
  let sentTo = 0;
  let parts: Part[] = [];
  let scheduled = false;
  /** Of `parts`. */
  let partBytes = 0;

  function endPart(): void {
    if (slab.at > sentTo) parts.push({ bytes: slab.buffer.subarray(sentTo, slab.at), sent: undefined });
    sentTo = slab.at;
  }

  function flush(): void {
    scheduled = false;
    if (socket.destroyed) {
      parts = [];
      partBytes = 0;
      sentTo = slab.at;
      return;
    }
    // What is queued already goes first.
    if (fd !== undefined && socket.writableLength === 0) writeDirectly(fd);
    if (parts.length > 0 || slab.at > sentTo) {
      endPart();
      queue(parts);
      parts = [];
      partBytes = 0;
    }
    reuse();
  }

  /** Nearly all there ever is lies in one piece, and is taken at once. */
  function writeDirectly(to: number): void {
    if (parts.length === 0) {
      if (slab.at > sentTo) sentTo += writeNow(to, slab.buffer, sentTo, slab.at);
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

  /** The kernel usually takes everything at once, and the memory is free again; otherwise it belongs to the socket. */
  function reuse(): void {
    if (socket.writableLength === 0) slab.at = sentTo = 0;
    else if (slab.at > slabSize / 2) {
      slab = new XdrWriter(slabSize);
      sentTo = 0;
    }
  }

  function record<A>(encode: Encode<A>, about: A): void {
    const markAt = slab.at;
    slab.u32(0);
    const data = encode(slab, about);
    const padded = data === undefined ? 0 : (data.length + 3) & ~3;
    // Before anything is cut off: the slab may move when it grows.
    slab.view.setUint32(markAt, (0x8000_0000 | (slab.at - markAt - 4 + padded)) >>> 0);
    if (data === undefined) return;
    if (data.length <= copiedData) {
      slab.fixed(data);
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
      const before = slab.at;
      try {
        record(encode, about);
      } catch (cause) {
        slab.at = before;
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
      return socket.writableLength + partBytes + slab.at - sentTo;
    },
  };
}

/*
 * Straight to the kernel: the way through a Node socket costs as much again as the system call. When it fails, nothing was
 * written: the socket then finds out, and tells it in its own way.
 */

/** Gives how many bytes the kernel took. */
function writeNow(fd: number, buffer: Buffer, from: number, end: number): number {
  try {
    return writeSync(fd, buffer, from, end - from);
  } catch {
    return 0;
  }
}

/** Gives what the kernel did not take. */
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
