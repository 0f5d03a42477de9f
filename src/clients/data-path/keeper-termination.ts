import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { KeeperClient } from '#keeper/keeper-client.ts';
import type { KeeperState } from '#keeper/protocol.ts';
import type { KeeperStarter } from './keeper-starter.ts';
import { type KnownKeeper, mountsOf } from './known-keeper.ts';

/** A keeper that was ended together with its mounts because it could not recover. */
export interface AbandonedKeeper {
  readonly keeper: string;
  readonly why: string;
  /** Undefined: the keeper did not answer. */
  readonly mounts: readonly string[] | undefined;
}

/** Ends keepers that cannot recover, together with their mounts. */
export interface KeeperTermination {
  /** Ends the keeper if it has mounts but no serving data path for too long. Call with each new state. */
  handleState(keeper: KnownKeeper, client: KeeperClient, state: KeeperState): void;
  /** The keeper serves, or is no longer connected. */
  clearUnserved(keeper: KnownKeeper): void;
  isStuck(keeper: KnownKeeper): boolean;
  /** For a keeper that does not answer. */
  kill(keeper: KnownKeeper, client: KeeperClient): Promise<void>;
}

export interface KeeperTerminationOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly stuckMs: number;
  readonly starter: Pick<KeeperStarter, 'kill'>;
  readonly onMountsLost: () => void;
  readonly onAbandoned: (what: AbandonedKeeper) => void;
  /** Aborted when this process stops using keepers. */
  readonly signal: AbortSignal;
}

const endTimeoutMs = 10_000;

export function createKeeperTermination(options: KeeperTerminationOptions): KeeperTermination {
  const { clock, log, stuckMs, starter, onMountsLost, onAbandoned, signal } = options;

  const isStuck = ({ unservedSince }: KnownKeeper): boolean =>
    unservedSince !== undefined && clock.elapsed() - unservedSince > stuckMs;

  function clearUnserved(keeper: KnownKeeper): void {
    keeper.endTimer?.[Symbol.dispose]();
    [keeper.unservedSince, keeper.endTimer] = [undefined, undefined];
  }

  function handleState(keeper: KnownKeeper, client: KeeperClient, { mounts, active }: KeeperState): void {
    if (mounts === 0 || active?.ready === true) clearUnserved(keeper);
    else if (keeper.unservedSince === undefined) {
      keeper.unservedSince = clock.elapsed();
      scheduleEnd(keeper, client);
    }
  }

  function scheduleEnd(keeper: KnownKeeper, client: KeeperClient, isReported = false): void {
    keeper.endTimer = clock.after(stuckMs + 1_000, () => {
      if (keeper.client === client && isStuck(keeper) && !signal.aborted) void end(keeper, client, isReported);
    });
  }

  /** Ends the keeper with all its mounts: its descriptors would block the next data path, too. */
  async function end(keeper: KnownKeeper, client: KeeperClient, isReported: boolean): Promise<void> {
    const why = 'no data path serves the mounts';
    log.error(`${why}: ending the keeper and remounting its volumes`, { keeper: keeper.name });
    const mounts = await mountsOf(keeper, clock, signal).catch(() => undefined);
    keeper.copies?.drop();
    using limit = clock.deadline(endTimeoutMs, signal);
    try {
      await client.end(limit.signal);
    } catch (cause) {
      if (signal.aborted) return;
      log.warn('failed to end a keeper: killing it', { keeper: keeper.name, why: String(cause) });
      if (!(await tryKill(keeper, client))) markUnreachable(keeper);
    }
    if (!isReported) onAbandoned({ keeper: keeper.name, why, mounts });
    // Usually the closed connection triggers this. If the keeper lives on, at least the mounts known here are repaired.
    onMountsLost();
    if (keeper.client === client) scheduleEnd(keeper, client, true);
  }

  async function kill(keeper: KnownKeeper, client: KeeperClient): Promise<void> {
    const why = 'the keeper no longer answers';
    log.error(`${why}: killing it`, { keeper: keeper.name });
    if (await tryKill(keeper, client)) onAbandoned({ keeper: keeper.name, why, mounts: undefined });
    else markUnreachable(keeper);
  }

  /** Kills the keeper directly, or through the container engine that started it. */
  async function tryKill(keeper: KnownKeeper, client: KeeperClient): Promise<boolean> {
    if (client.kill()) return true;
    return await starter.kill(keeper.name).catch((cause: unknown) => {
      log.warn('failed to kill a keeper through its container engine', { keeper: keeper.name, why: String(cause) });
      return false;
    });
  }

  function markUnreachable(keeper: KnownKeeper): void {
    keeper.isOutOfReach = true;
    log.error('failed to kill a keeper from here: restart its container', { keeper: keeper.name });
  }

  return { handleState, clearUnserved, isStuck, kill };
}
