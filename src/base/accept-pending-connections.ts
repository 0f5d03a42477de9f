import { rm } from 'node:fs/promises';
import type { Server } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';

/**
 * Call this before closing a server: unlinks its socket, so that no new client can connect, and waits until the server has accepted all
 * pending connections. Closing at once would reset connections that the kernel has accepted and the server has not, in the middle of a
 * request.
 */
export async function acceptPendingConnections(server: Server): Promise<void> {
  const address = server.address();
  // Closing unlinks the path again. Only a server that started within these few turns could lose its socket that way.
  if (typeof address === 'string') await rm(address, { force: true });
  let acceptedCount = 0;
  const count = (): void => void acceptedCount++;
  server.on('connection', count);
  try {
    // Node accepts one pending connection per turn of the event loop. Wait for two turns, because part of the current one may have passed.
    for (let before = -1; before !== acceptedCount; ) {
      before = acceptedCount;
      await turn();
      await turn();
    }
  } finally {
    server.off('connection', count);
  }
}
