import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { KeeperReplacement } from './keeper-replacement.ts';
import type { KeeperStarter } from './keeper-starter.ts';
import { type KnownKeeper, stateOf } from './known-keeper.ts';
import type { KnownKeepers } from './known-keepers.ts';

/** Ends keepers that have no mounts. */
export interface IdleKeepers {
  /** Ends keepers that have been idle since the last call, and replaces those that run in the wrong place. */
  tidy(signal: AbortSignal): Promise<void>;
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

const idleRounds = 2;
const clearEveryMs = 250;
const maxClearPasses = 80;

export function createIdleKeepers(options: IdleKeepersOptions): IdleKeepers {
  const { clock, log, known, starter, replacement } = options;

  async function endIf(keeper: KnownKeeper, isDue: () => boolean, signal: AbortSignal): Promise<void> {
    // Kubernetes would restart it at once.
    if (starter.areExternal) return;
    using _ = await known.opening.hold([keeper.name], signal);
    const { client } = keeper;
    if (client === undefined || keeper.users > 0) return;
    const state = await stateOf(keeper, clock, signal);
    if (state?.mounts !== 0 || keeper.users > 0 || !isDue()) return;
    known.forget(keeper);
    await client.end(signal).catch((cause: unknown) => log.warn('failed to end a keeper', { why: String(cause) }));
    client[Symbol.dispose]();
  }

  async function tidy(signal: AbortSignal): Promise<void> {
    for (const keeper of await known.running(signal)) {
      await endIf(keeper, () => ++keeper.idleRounds > idleRounds, signal);
      if (keeper.client !== undefined) await replacement.replaceIfMisplaced(keeper, signal);
    }
    await starter.clear(signal);
  }

  async function endIdle(signal: AbortSignal): Promise<void> {
    for (const keeper of await known.running(signal)) await endIf(keeper, () => true, signal);
    const staying = (await known.running(signal)).length;
    // A container ends a moment after the processes in it.
    for (let pass = 0; pass < maxClearPasses && (await starter.clear(signal)) > staying; pass++)
      await clock.sleep(clearEveryMs, signal);
  }

  return { tidy, endIdle };
}
