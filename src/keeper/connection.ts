import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { createReceiver, shutDown } from '#base/linux/descriptor-sockets.ts';
import { decode, encode, type Kind, type Message, type MessageOf, ProtocolError } from './protocol.ts';
import { closeAll, createSendQueue } from './send-queue.ts';
import { shutDownAtExit } from './system-calls.ts';

/** The message kinds that this end accepts, and their handlers. */
export interface Handlers<K extends Kind> {
  /** Any other kind closes the connection. `failed` is always accepted and reported through `closed`. */
  readonly accepts: readonly K[];
  /**
   * Handlers take descriptors by removing them from the list, in order. The connection closes those that are left when
   * this returns or throws: a forgotten copy of /dev/fuse in a keeper would stop the kernel from ending a mount that no
   * process serves.
   */
  message(message: MessageOf<K>, descriptors: number[]): void;
  /** Called last, after all messages that the peer sent before it ended. */
  closed(why: string): void;
}

export interface Connection {
  readonly isOpen: boolean;
  /** Never blocks or fails: a peer that accepts no messages is reported as closed. The caller keeps the descriptors. */
  send(message: Message, descriptors?: readonly number[]): void;
  /** Sets the handlers. The first call starts reading. */
  handle<K extends Kind>(handlers: Handlers<K>): void;
  close(): void;
}

/** Owns the socket and closes it with the connection. */
export function createConnection(fd: number, clock: Clock): Connection {
  const exitHook = shutDownAtExit(fd);
  const queue = createSendQueue(fd, clock, () => end('the peer accepts no messages'));
  let handlers: Handlers<Kind> | undefined;
  let isOpen = true;
  let isReading = false;
  let closeReason = 'the peer is gone';

  function end(reason?: string): void {
    if (!isOpen) return;
    isOpen = false;
    if (reason !== undefined) closeReason = reason;
    queue[Symbol.dispose]();
    // The thread that waits for a message releases the descriptor only after a shutdown.
    shutDown(fd);
    if (!isReading) free();
  }

  function free(): void {
    exitHook[Symbol.dispose]();
    closeSync(fd);
  }

  function send(message: Message, descriptors: readonly number[] = []): void {
    if (isOpen) queue.send(encode(message), descriptors);
  }

  function receiveMessage(bytes: Buffer, descriptors: number[]): void {
    try {
      if (!isOpen) throw new ProtocolError('the connection is closed');
      const message = decode(bytes, descriptors.length);
      if (handlers?.accepts.includes(message.kind) === true) handlers.message(message, descriptors);
      else if (message.kind === 'failed') end(message.text);
      else throw new ProtocolError(`a message (${message.kind}) is unexpected here`);
    } catch (cause) {
      // One connection must not end a keeper. Other errors may quote secrets.
      refuse(cause instanceof ProtocolError ? cause.message : 'a message could not be processed');
    } finally {
      closeAll(descriptors);
    }
  }

  function refuse(text: string): void {
    send({ kind: 'failed', ask: 0, reason: 'protocol', text });
    end(text);
  }

  async function readMessages(): Promise<void> {
    const receive = createReceiver(fd);
    // recvmsg reports a reset once, before data that the peer had sent. Only a second end means that there is nothing
    // more.
    for (let ends = 0; ends < 2; ) {
      const parcel = await receive().catch(() => refuse('a message is too long'));
      if (parcel === undefined) ends++;
      else {
        ends = 0;
        receiveMessage(parcel.bytes, [...parcel.descriptors]);
      }
    }
    end();
    free();
    handlers?.closed(closeReason);
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
      void readMessages();
    },
    close: () => end('closed here'),
  };
}
