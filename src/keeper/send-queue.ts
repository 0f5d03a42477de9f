import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { sendMessage } from '#base/linux/descriptor-sockets.ts';
import { duplicate } from '#base/linux/socket-pair.ts';

/** Messages for a socket that has no room for them yet. */
export interface SendQueue extends Disposable {
  /** Sends now or later. The caller keeps the descriptors. */
  send(bytes: Buffer, descriptors: readonly number[]): void;
}

interface UnsentMessage {
  readonly bytes: Buffer;
  /** Duplicates: the originals may be closed before the socket has room. */
  readonly descriptors: readonly number[];
}

const retryMs = 2;
/** A peer that accepts nothing for this long counts as dead. */
const maxStallMs = 10_000;
const maxUnsentBytes = 8 * 1024 * 1024;

export const closeAll = (descriptors: readonly number[]): void => {
  for (const fd of descriptors) closeSync(fd);
};

/** Calls `onStuck` when the peer accepts no messages for `stuckMs`; the caller must then dispose of the queue. */
export function createSendQueue(fd: number, clock: Clock, onStuck: () => void): SendQueue {
  const unsent: UnsentMessage[] = [];
  let unsentBytes = 0;
  let retry: Disposable | undefined;
  let lastSentAt = 0;

  function enqueue(bytes: Buffer, descriptors: readonly number[]): void {
    if (unsent.length === 0) lastSentAt = clock.elapsed();
    unsent.push({ bytes, descriptors: descriptors.map(duplicate) });
    unsentBytes += bytes.length;
    retryLater();
  }

  /** False: the socket has no room. */
  function trySend(bytes: Buffer, descriptors: readonly number[]): boolean {
    try {
      sendMessage(fd, { bytes, descriptors });
      return true;
    } catch (cause) {
      if (isErrno(cause, 'EAGAIN', 'ENOBUFS', 'ETOOMANYREFS')) return false;
      // The peer is gone; its last messages are still to be read.
      if (isErrno(cause, 'EPIPE', 'ECONNRESET', 'ENOTCONN')) return true;
      throw cause;
    }
  }

  function retryLater(): void {
    retry?.[Symbol.dispose]();
    retry = clock.after(retryMs, sendUnsent);
  }

  function sendUnsent(): void {
    for (let next = unsent[0]; next !== undefined && trySend(next.bytes, next.descriptors); next = unsent[0]) {
      unsent.shift();
      unsentBytes -= next.bytes.length;
      closeAll(next.descriptors);
      lastSentAt = clock.elapsed();
    }
    if (unsent.length === 0) return;
    if (clock.elapsed() - lastSentAt > maxStallMs) onStuck();
    else retryLater();
  }

  return {
    send: (bytes, descriptors) => {
      if (unsent.length === 0 && trySend(bytes, descriptors)) return;
      if (unsentBytes + bytes.length > maxUnsentBytes) onStuck();
      else enqueue(bytes, descriptors);
    },
    [Symbol.dispose]: () => {
      retry?.[Symbol.dispose]();
      for (const message of unsent.splice(0)) closeAll(message.descriptors);
    },
  };
}
