import type { Socket } from 'node:net';
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
 * Calls are laid out one behind the other in a slab, which is used again once the kernel has taken all of it.
 */
export interface Sender {
  /** Lays out one record. What `encode` gives is the data of its last opaque, whose length it wrote: they go uncopied. */
  record<A>(encode: Encode<A>, about: A): void;
  /** Bytes that the kernel has not taken yet, those of this turn too. */
  readonly queued: number;
}

/** `onSent`: data that went uncopied are not needed any more; their memory may be used again. */
export function createSender(
  socket: Socket,
  onError: (cause: unknown) => void,
  onSent?: (data: Uint8Array) => void,
): Sender {
  let slab = new XdrWriter(slabSize);
  let sentTo = 0;
  let parts: Part[] = [];
  let scheduled = false;
  /** Of `parts`. */
  let waiting = 0;

  function cut(): void {
    if (slab.at > sentTo) parts.push({ bytes: slab.buffer.subarray(sentTo, slab.at), sent: undefined });
    sentTo = slab.at;
  }

  function flush(): void {
    scheduled = false;
    cut();
    const [only] = parts;
    if (only === undefined || socket.destroyed) {
      parts = [];
      waiting = 0;
      return;
    }
    if (parts.length === 1) socket.write(only.bytes, only.sent);
    else {
      socket.cork();
      for (const { bytes, sent } of parts) socket.write(bytes, sent);
      socket.uncork();
    }
    parts = [];
    waiting = 0;
    reuse();
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
    cut();
    parts.push({ bytes: data, sent: onSent && (() => onSent(data)) });
    waiting += data.length;
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
    record: (encode, about) => {
      const before = slab.at;
      try {
        record(encode, about);
      } catch (cause) {
        slab.at = before;
        throw cause;
      }
      if (scheduled) return;
      scheduled = true;
      process.nextTick(flushSafely);
    },
    get queued() {
      return socket.writableLength + waiting + slab.at - sentTo;
    },
  };
}
