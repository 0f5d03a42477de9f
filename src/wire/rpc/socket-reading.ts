import { Socket, type SocketConstructorOpts } from 'node:net';
import type { Input } from './receiver.ts';

/** Bytes as they come are put into the receiver's own memory; a copy less, for large calls half the price. */
type OnRead = { buffer(): Buffer; callback(bytes: number): boolean };

/** Inside of Node's sockets: what the system's connection is, and that it can fill memory of our choosing. */
interface SocketInternals {
  _handle: { readonly useUserBuffer?: unknown } | null;
}

/**
 * Node lets a connection that is made say where its bytes shall go (`onread`), and one that is accepted not. So the
 * system's connection is taken out of the accepted socket and put into one that does. Where Node's inside has changed,
 * bytes come by events. The accepted socket stays, as the server counts it; both end together.
 */
export function readIntoReceiver(accepted: Socket, receiver: Input): Socket {
  const internals = accepted as unknown as SocketInternals;
  const handle = internals._handle;
  if (typeof handle?.useUserBuffer !== 'function') return readFromDataEvents(accepted, receiver);
  internals._handle = null;
  const onread: OnRead = {
    buffer: () => receiver.buffer(),
    callback: (bytes) => {
      receiver.received(bytes);
      return true;
    },
  };
  const { allowHalfOpen } = accepted;
  const socket = new Socket({ handle, onread, allowHalfOpen } as unknown as SocketConstructorOpts);
  socket.on('close', () => accepted.destroy());
  accepted.on('close', () => socket.destroy());
  socket.resume();
  return socket;
}

export function readFromDataEvents(socket: Socket, receiver: Input): Socket {
  socket.on('data', (chunk: Buffer) => receiver.push(chunk));
  socket.resume();
  return socket;
}
