import { closeSync } from 'node:fs';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { connectKeeper } from './keeper-client.ts';
import type { KeeperState } from './protocol.ts';
import { peerCredentials } from './system-calls.ts';

/**
 * alive: the keeper in this container does not hang. ready: it is in charge, holds everything and serves with its own
 * data path, so the previous keeper's container can be removed.
 */
export type KeeperCheck = 'alive' | 'ready';

const answerTimeoutMs = 5_000;

/** Returns the reason for a failed check, undefined if it passes. */
export async function checkKeeper(path: string, check: KeeperCheck, clock: Clock): Promise<string | undefined> {
  const listener = findListener(path);
  if (listener === 'nobody') return check === 'alive' ? undefined : 'no keeper is in charge';
  if (listener === 'another') return check === 'alive' ? undefined : 'the keeper of another container is in charge';
  try {
    const state = await readState(path, clock);
    return check === 'alive' ? undefined : unreadyReason(state);
  } catch (cause) {
    return `the keeper does not answer: ${cause instanceof Error ? cause.message : String(cause)}`;
  }
}

/** A process in another container has no pid here. */
function findListener(path: string): 'nobody' | 'another' | 'ours' {
  try {
    const fd = connectTo(path);
    const { pid } = peerCredentials(fd);
    closeSync(fd);
    return pid === 0 ? 'another' : 'ours';
  } catch (cause) {
    return isErrno(cause, 'EAGAIN') ? 'ours' : 'nobody';
  }
}

async function readState(path: string, clock: Clock): Promise<KeeperState> {
  using client = connectKeeper({
    path,
    user: process.getuid?.() ?? 0,
    clock,
    version: 'check',
    changed: () => undefined,
    closed: () => undefined,
  });
  using limit = clock.deadline(answerTimeoutMs, new AbortController().signal);
  return await client.status(limit.signal);
}

function unreadyReason({ doing, isBorrowed }: KeeperState): string | undefined {
  if (isBorrowed === true) return 'the data path of the previous keeper still serves';
  return doing === 'idle' || doing === 'serving' ? undefined : `the keeper is ${doing}`;
}
