import { Socket } from 'node:net';
import type { Clock } from '#base/clock.ts';

export interface DrainParts {
  readonly clock: Clock;
  /** Resolves when the server has answered somebody; may be asked again and again. */
  readonly isAnswering: (signal: AbortSignal) => Promise<void>;
}

/** A server that answers others has long done whatever lay in its queues. */
const timeoutMs = 10_000;

/**
 * Ends connections that a predecessor left, and waits until the server has ended them too: what it has not read of them by then
 * will never be done. Else an old call could be done after a new one: remove what was made since, or write over what was
 * written since. A server that does not end them although it answers is hung up on.
 *
 * What it has read and not done yet is another matter. nfs-ganesha and our own server end a connection when its last call is
 * done. Linux' nfsd ends it at once, while its threads go on with calls they have taken from it, and nothing that a client sees
 * tells when those are done: there an old call can still come late, if it takes longer than all of a takeover.
 */
export async function drainConnections(
  descriptors: readonly number[],
  parts: DrainParts,
  signal: AbortSignal,
): Promise<void> {
  const sockets = descriptors.map((fd) => new Socket({ fd, readable: true, writable: true, allowHalfOpen: true }));
  const ended = sockets.map(closed);
  for (const socket of sockets) {
    // What comes is answers to nobody.
    socket.resume();
    socket.end();
  }
  using _stop = onAbort(signal, () => {
    for (const socket of sockets) socket.destroy();
  });
  const giveUp = new AbortController();
  const hangUp = async (): Promise<void> => {
    await parts.isAnswering(giveUp.signal);
    await parts.clock.sleep(timeoutMs, giveUp.signal);
    for (const socket of sockets) if (!socket.destroyed) socket.resetAndDestroy();
  };
  if (sockets.length > 0) hangUp().catch(() => undefined);
  await Promise.all(ended);
  giveUp.abort();
  signal.throwIfAborted();
}

async function closed(socket: Socket): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  socket.on('error', () => undefined).once('close', () => resolve());
  await promise;
}

function onAbort(signal: AbortSignal, stop: () => void): Disposable {
  signal.addEventListener('abort', stop, { once: true });
  if (signal.aborted) stop();
  return { [Symbol.dispose]: () => signal.removeEventListener('abort', stop) };
}
