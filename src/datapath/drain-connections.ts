import { Socket } from 'node:net';
import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';

export interface DrainParts {
  readonly clock: Clock;
  /** Resolves when the server has answered any call. May be called repeatedly. */
  readonly waitUntilAnswering: (signal: AbortSignal) => Promise<void>;
}

/** After this time, a server that answers new calls has processed the queued ones. */
const closeTimeoutMs = 10_000;

/**
 * Closes a predecessor's connections and waits until the server has closed them, too: calls that it has not read by
 * then will never run. Otherwise an old call could run after a new one, and remove or overwrite newer data. A server
 * that answers calls but does not close them gets a reset.
 *
 * Calls that the server has read but not finished may still run. nfs-ganesha and our own server close a connection
 * after its last call. Linux nfsd closes it at once while its threads go on, and a client cannot see when they are
 * done: an old call can still run late if it takes longer than a whole takeover.
 */
export async function drainConnections(
  descriptors: readonly number[],
  parts: DrainParts,
  signal: AbortSignal,
): Promise<void> {
  const sockets = descriptors.map((fd) => new Socket({ fd, readable: true, writable: true, allowHalfOpen: true }));
  const closings = sockets.map(waitUntilClosed);
  for (const socket of sockets) {
    // Discard replies: no request waits for them.
    socket.resume();
    socket.end();
  }
  using _stop = onAbort(signal, () => {
    for (const socket of sockets) socket.destroy();
  });
  const giveUp = new AbortController();
  const resetUnclosed = async (): Promise<void> => {
    await parts.waitUntilAnswering(giveUp.signal);
    await parts.clock.sleep(closeTimeoutMs, giveUp.signal);
    for (const socket of sockets) if (!socket.destroyed) socket.resetAndDestroy();
  };
  if (sockets.length > 0) resetUnclosed().catch(() => undefined);
  await Promise.all(closings);
  giveUp.abort();
  signal.throwIfAborted();
}

async function waitUntilClosed(socket: Socket): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  socket.on('error', () => undefined).once('close', () => resolve());
  await promise;
}
