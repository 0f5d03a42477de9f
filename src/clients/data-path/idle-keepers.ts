import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { KeeperReplacement } from './keeper-replacement.ts';
import type { KeeperStarter } from './keeper-starter.ts';
import { type KnownKeeper, stateOf } from './known-keeper.ts';
import type { KnownKeepers } from './known-keepers.ts';

/** Ends keepers that have no mounts. */
export interface IdleKeepers {
  /** Ends keepers that have been idle since the last call, and replaces those that run in the wrong place. */
  runMaintenance(signal: AbortSignal): Promise<void>;
  /** Ends idle keepers. */
  endIdle(signal: AbortSignal): Promise<void>;
}

interface IdleKeepersOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly known: KnownKeepers;
  readonly starter: KeeperStarter;
  readonly replacement: KeeperReplacement;
}

const maxIdleRounds = 2;
const clearIntervalMs = 250;
const maxClearPasses = 80;

export function createIdleKeepers(options: IdleKeepersOptions): IdleKeepers {
  const { clock, log, known, starter, replacement } = options;

  async function endIfDue(keeper: KnownKeeper, isDue: () => boolean, signal: AbortSignal): Promise<void> {
    // Kubernetes would restart it at once.
    if (starter.areExternal) return;
    using _ = await known.keeperLocks.hold([keeper.name], signal);
    const { client } = keeper;
    if (client === undefined || keeper.useCount > 0) return;
    const state = await stateOf(keeper, clock, signal);
    if (state?.mounts !== 0 || keeper.useCount > 0 || !isDue()) return;
    known.forget(keeper);
    await client.end(signal).catch((cause: unknown) => log.warn('failed to end a keeper', { why: String(cause) }));
    client[Symbol.dispose]();
  }

  async function runMaintenance(signal: AbortSignal): Promise<void> {
    for (const keeper of await known.listRunning(signal)) {
      await endIfDue(keeper, () => ++keeper.idleRounds > maxIdleRounds, signal);
      if (keeper.client !== undefined) await replacement.replaceIfMisplaced(keeper, signal);
    }
    await starter.removeEndedContainers(signal);
  }

  async function endIdle(signal: AbortSignal): Promise<void> {
    for (const keeper of await known.listRunning(signal)) await endIfDue(keeper, () => true, signal);
    const runningCount = (await known.listRunning(signal)).length;
    // A container ends a moment after the processes in it.
    for (let pass = 0; pass < maxClearPasses && (await starter.removeEndedContainers(signal)) > runningCount; pass++)
      await clock.sleep(clearIntervalMs, signal);
  }

  return { runMaintenance, endIdle };
}
