import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { processBehind } from './processes.ts';
import { hasEnded, isInReach, openPeer } from './system.ts';

const reachMs = 5_000;
const lookMs = 50;

/**
 * Makes sure that the keeper at the other end of this connection, which listens at this path, is gone. It may run in another
 * container, whose processes cannot be killed from here: then it is given a while to end by itself. False: it lives.
 */
export function endingOf(fd: number, path: string, clock: Clock): () => Promise<boolean> {
  const pidfd = openPeer(fd);
  if (pidfd !== undefined && isInReach(pidfd)) {
    const { end } = processBehind(pidfd, clock);
    return async () => {
      await end();
      return true;
    };
  }
  // Nobody but the process itself listens there, and it does so until its end.
  const isGone = (): boolean => (pidfd === undefined ? !isListening(path) : hasEnded(pidfd));
  return async () => {
    const began = clock.elapsed();
    while (!isGone()) {
      if (clock.elapsed() - began > reachMs) return false;
      const { promise, resolve } = Promise.withResolvers<void>();
      clock.after(lookMs, resolve);
      await promise;
    }
    return true;
  };
}

/** Also when whoever listens is too busy to take another connection. */
export function isListening(path: string): boolean {
  try {
    closeSync(connectTo(path));
    return true;
  } catch (cause) {
    return !isErrno(cause, 'ENOENT', 'ECONNREFUSED');
  }
}
