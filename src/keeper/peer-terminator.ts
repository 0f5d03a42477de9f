import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { processByPidfd } from './processes.ts';
import { canKill, hasEnded, openPeerPidfd } from './system-calls.ts';

const exitTimeoutMs = 5_000;
const pollMs = 50;

/**
 * Terminates the keeper at the other end of this connection, which listens at this path. If it runs in another
 * container, where it cannot be killed from here, waits a while for it to exit. False: it is still alive.
 */
export function createPeerTerminator(fd: number, path: string, clock: Clock): () => Promise<boolean> {
  const pidfd = openPeerPidfd(fd);
  if (pidfd !== undefined && canKill(pidfd)) {
    const { end } = processByPidfd(pidfd, clock);
    return async () => {
      await end();
      return true;
    };
  }
  // Only that process listens there, until it exits.
  const isGone = (): boolean => (pidfd === undefined ? !isListening(path) : hasEnded(pidfd));
  return async () => {
    const startedAt = clock.elapsed();
    while (!isGone()) {
      if (clock.elapsed() - startedAt > exitTimeoutMs) return false;
      const { promise, resolve } = Promise.withResolvers<void>();
      clock.after(pollMs, resolve);
      await promise;
    }
    return true;
  };
}

/** True also if the listening process is too busy to accept another connection. */
export function isListening(path: string): boolean {
  try {
    closeSync(connectTo(path));
    return true;
  } catch (cause) {
    return !isErrno(cause, 'ENOENT', 'ECONNREFUSED');
  }
}
