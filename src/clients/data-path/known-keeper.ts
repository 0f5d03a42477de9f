import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { DescriptorCopies } from '#keeper/descriptor-copies.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import { KeeperError, type KeeperState, outOfReach } from '#keeper/protocol.ts';
import { type KeeperLiveness, keeperTimeoutMs } from './keeper-liveness.ts';

/** A keeper that is in use, or may exist. */
export interface KnownKeeper {
  readonly name: string;
  client: KeeperClient | undefined;
  /** The keeper did not answer, and could not be killed. */
  isOutOfReach: boolean;
  liveness: KeeperLiveness | undefined;
  /** Copies of the keeper's descriptors, if the keeper may be killed together with all its processes. */
  readonly copies: DescriptorCopies | undefined;
  state: KeeperState | undefined;
  useCount: number;
  idleRounds: number;
  /** Since when the keeper has had mounts but no serving data path. */
  unservedSince: number | undefined;
  /** Ends the keeper if its mounts are not served for too long. */
  endTimer: Disposable | undefined;
}

/** Longer than a new keeper waits for a data path that has lost its keeper. */
const listTimeoutMs = 6_000;

export const newKeeper = (name: string, copies: DescriptorCopies | undefined): KnownKeeper => ({
  name,
  client: undefined,
  liveness: undefined,
  state: undefined,
  useCount: 0,
  idleRounds: 0,
  unservedSince: undefined,
  endTimer: undefined,
  isOutOfReach: false,
  copies,
});

/** Throws if the keeper does not answer and can be killed only from its own container. */
export function requireReachable({ liveness, isOutOfReach }: KnownKeeper): void {
  if (isOutOfReach && liveness?.isSilent === true) throw outOfReach('the keeper does not answer');
}

/** Throws soon if the keeper does not answer. */
export async function mountsOf(keeper: KnownKeeper, clock: Clock, signal: AbortSignal): Promise<readonly string[]> {
  const { client, liveness, copies } = keeper;
  requireReachable(keeper);
  // These mounts wait for the next keeper.
  if (client === undefined && copies !== undefined && copies.mounts.length > 0) return copies.mounts;
  if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
  if (liveness?.isSilent === true) throw new KeeperError('silent', 'the keeper does not answer');
  using limit = clock.deadline(listTimeoutMs, signal);
  try {
    return await client.list(limit.signal);
  } catch (cause) {
    if (cause instanceof DeadlineExceeded) liveness?.check();
    throw cause;
  }
}

/** Undefined: the keeper does not answer. */
export async function stateOf(
  keeper: KnownKeeper,
  clock: Clock,
  signal: AbortSignal,
): Promise<KeeperState | undefined> {
  const { client, liveness } = keeper;
  if (client === undefined || liveness?.isSilent === true) return undefined;
  using limit = clock.deadline(keeperTimeoutMs, signal);
  try {
    return await client.status(limit.signal);
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof DeadlineExceeded) liveness?.check();
    return undefined;
  }
}
