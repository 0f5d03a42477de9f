import { Socket, type SocketConstructorOpts } from 'node:net';
import type { Input } from './receiver.ts';

/** Node writes received bytes into the receiver's own memory. That saves a copy, which is half the cost of a large call. */
type OnRead = { buffer(): Buffer; callback(bytes: number): boolean };

/** Internals of Node's sockets: the handle of the connection. With `useUserBuffer` it can read into a given buffer. */
interface SocketInternals {
  _handle: { readonly useUserBuffer?: unknown } | null;
}

/**
 * Node supports `onread` for outgoing connections only. So this function takes the handle out of the accepted socket and gives it
 * to a new socket that has `onread`. If Node's internals have changed, it falls back to 'data' events. The accepted socket stays,
 * since the server counts it; both are destroyed together.
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
