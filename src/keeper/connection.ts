import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { createReceiver, sendParcel, shutDown } from '#base/linux/descriptors.ts';
import { duplicate } from '#base/linux/socket-pair.ts';
import { decode, encode, type Kind, type Message, type MessageOf, ProtocolError } from './protocol.ts';
import { shutDownAtExit } from './system-calls.ts';

/** What whoever is at this end of a line takes. */
export interface Handlers<K extends Kind> {
  /** Anything else ends the line. `failed` is always taken: it is told by `closed`. */
  readonly accepts: readonly K[];
  /**
   * Descriptors are taken, in their order, by being removed from the list. What is left when this returns or throws is closed: in
   * a keeper a forgotten copy of /dev/fuse would keep the kernel from ending a mount that nobody serves.
   */
  message(message: MessageOf<K>, descriptors: number[]): void;
  /** The last thing that is heard of it: everything that was sent before it ended has been told. */
  closed(why: string): void;
}

export interface Connection {
  readonly isOpen: boolean;
  /** Never waits, and does not fail: whoever does not take messages is told as closed. The descriptors stay the caller's. */
  send(message: Message, descriptors?: readonly number[]): void;
  /** From now on; the first call begins to read. */
  handle<K extends Kind>(handlers: Handlers<K>): void;
  close(): void;
}

interface Unsent {
  readonly bytes: Buffer;
  /** Copies: the originals may be closed by the time there is room. */
  readonly descriptors: readonly number[];
}

const retryMs = 2;
/** A peer that takes nothing for so long is as good as dead. */
const stuckMs = 10_000;
const mostUnsent = 8 * 1024 * 1024;

const closeAll = (descriptors: readonly number[]): void => {
  for (const fd of descriptors) closeSync(fd);
};

/** Over a socket of its own: it is closed with the line. */
export function createConnection(fd: number, clock: Clock): Connection {
  const registered = shutDownAtExit(fd);
  const unsent: Unsent[] = [];
  let unsentBytes = 0;
  let handlers: Handlers<Kind> | undefined;
  let isOpen = true;
  let isReading = false;
  let why = 'the other end has gone';
  let retry: Disposable | undefined;
  let movedAt = 0;

  function end(because?: string): void {
    if (!isOpen) return;
    isOpen = false;
    if (because !== undefined) why = because;
    retry?.[Symbol.dispose]();
    for (const each of unsent.splice(0)) closeAll(each.descriptors);
    // Only then does the thread that waits for a message let go of the descriptor.
    shutDown(fd);
    if (!isReading) free();
  }

  function free(): void {
    registered[Symbol.dispose]();
    closeSync(fd);
  }

  function send(message: Message, descriptors: readonly number[] = []): void {
    if (!isOpen) return;
    const bytes = encode(message);
    if (unsent.length === 0 && sent(bytes, descriptors)) return;
    if (unsentBytes + bytes.length > mostUnsent) end('the other end takes no messages');
    else sendLater(bytes, descriptors);
  }

  function sendLater(bytes: Buffer, descriptors: readonly number[]): void {
    if (unsent.length === 0) movedAt = clock.elapsed();
    unsent.push({ bytes, descriptors: descriptors.map(duplicate) });
    unsentBytes += bytes.length;
    retryLater();
  }

  /** False: there is no room now. */
  function sent(bytes: Buffer, descriptors: readonly number[]): boolean {
    try {
      sendParcel(fd, { bytes, descriptors });
      return true;
    } catch (cause) {
      if (isCode(cause, 'EAGAIN', 'ENOBUFS', 'ETOOMANYREFS')) return false;
      // It has gone: what it sent before that is still to be read.
      if (isCode(cause, 'EPIPE', 'ECONNRESET', 'ENOTCONN')) return true;
      throw cause;
    }
  }

  function retryLater(): void {
    retry?.[Symbol.dispose]();
    retry = clock.after(retryMs, sendUnsent);
  }

  function sendUnsent(): void {
    for (let next = unsent[0]; next !== undefined && sent(next.bytes, next.descriptors); next = unsent[0]) {
      unsent.shift();
      unsentBytes -= next.bytes.length;
      closeAll(next.descriptors);
      movedAt = clock.elapsed();
    }
    if (unsent.length === 0) return;
    if (clock.elapsed() - movedAt > stuckMs) end('the other end takes no messages');
    else retryLater();
  }

  function take(bytes: Buffer, descriptors: number[]): void {
    try {
      if (!isOpen) throw new ProtocolError('the line is closed');
      const message = decode(bytes, descriptors.length);
      if (handlers?.accepts.includes(message.kind) === true) handlers.message(message, descriptors);
      else if (message.kind === 'failed') end(message.text);
      else throw new ProtocolError(`a message (${message.kind}) is not expected here`);
    } catch (cause) {
      // One line must not end a keeper. What else was thrown may quote what is secret.
      refuse(cause instanceof ProtocolError ? cause.message : 'a message could not be dealt with');
    } finally {
      closeAll(descriptors);
    }
  }

  function refuse(text: string): void {
    send({ kind: 'failed', ask: 0, reason: 'protocol', text });
    end(text);
  }

  async function read(): Promise<void> {
    const receive = createReceiver(fd);
    // A reset is told once, and before what the other end had sent: only after the second end is there nothing more.
    for (let ends = 0; ends < 2; ) {
      const parcel = await receive().catch(() => refuse('a message is too long'));
      if (parcel === undefined) ends++;
      else {
        ends = 0;
        take(parcel.bytes, [...parcel.descriptors]);
      }
    }
    end();
    free();
    handlers?.closed(why);
  }

  return {
    get isOpen() {
      return isOpen;
    },
    send,
    handle: (next) => {
      handlers = next as unknown as Handlers<Kind>;
      if (isReading || !isOpen) return;
      isReading = true;
      void read();
    },
    close: () => end('closed here'),
  };
}

const isCode = (cause: unknown, ...codes: readonly string[]): boolean =>
  cause instanceof Error && 'code' in cause && codes.includes(String(cause.code));
