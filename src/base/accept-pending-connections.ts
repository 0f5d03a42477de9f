import { rm } from 'node:fs/promises';
import type { Server } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';

/**
 * Before a server is closed: takes its socket's name away, so that nobody can connect any more, and waits until all who have
 * are accepted. Closing at once would cut those off whom the kernel let in and the server has not seen, in the middle of
 * what they send.
 */
export async function takeLastConnections(server: Server): Promise<void> {
  const at = server.address();
  // Closing removes the name once more; that it is another's by then takes a start within these few turns.
  if (typeof at === 'string') await rm(at, { force: true });
  let taken = 0;
  const count = (): void => void taken++;
  server.on('connection', count);
  try {
    // In every turn of the event loop one is accepted, where there is one. The first turn may be half over.
    for (let before = -1; before !== taken; ) {
      before = taken;
      await turn();
      await turn();
    }
  } finally {
    server.off('connection', count);
  }
}
