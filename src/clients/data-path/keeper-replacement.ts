import { dirname } from 'node:path';
import type { Log } from '#base/log.ts';
import { KeeperError } from '#keeper/protocol.ts';
import { keeperFailure } from './keeper-errors.ts';
import { upgradedByKubernetes } from './keeper-pod.ts';
import { dataPathProgram, type KeeperStarter } from './keeper-starter.ts';
import { type KnownKeeper, requireReachable } from './known-keeper.ts';
import type { KnownKeepers } from './known-keepers.ts';

/** Replaces keepers and their data paths while their mounts are in use. */
export interface KeeperReplacement {
  replace(keeper: KnownKeeper, signal: AbortSignal): Promise<void>;
  replaceIfMisplaced(keeper: KnownKeeper, signal: AbortSignal): Promise<void>;
}

interface KeeperReplacementOptions {
  readonly log: Log;
  readonly known: Pick<KnownKeepers, 'keeperLocks' | 'connect' | 'forget'>;
  readonly starter: KeeperStarter;
}

export function createKeeperReplacement({ log, known, starter }: KeeperReplacementOptions): KeeperReplacement {
  /** Replaces a misplaced keeper with one in its network's current namespace, or in a container of its own. */
  async function replaceIfMisplaced(keeper: KnownKeeper, signal: AbortSignal): Promise<void> {
    try {
      if (!(await starter.isMisplaced(keeper.name, signal))) return;
      log.info('replacing a data path that runs in the wrong place', { keeper: keeper.name });
      await replace(keeper, signal);
    } catch (cause) {
      signal.throwIfAborted();
      log.warn('failed to replace a data path that runs in the wrong place', {
        keeper: keeper.name,
        why: String(cause),
      });
    }
  }

  /** Replaces first the keeper, whose successor takes everything over, then its data path. */
  async function replace(keeper: KnownKeeper, signal: AbortSignal): Promise<void> {
    try {
      using _ = await known.keeperLocks.hold([keeper.name], signal);
      requireReachable(keeper);
      if (starter.areExternal) throw upgradedByKubernetes();
      const previous = keeper.client;
      await starter.restart(keeper.name, signal);
      // The predecessor closes its end only later; until then calls would still go to it.
      known.forget(keeper);
      previous?.[Symbol.dispose]();
      const client = await known.connect(keeper);
      if (client === undefined) throw new KeeperError('gone', 'the keeper has gone');
      // An idle data path is replaced, too: otherwise it would stay in the old container.
      const { mounts, active } = await client.status(signal);
      if (mounts > 0 || active !== null) await client.upgrade(dataPathProgram, signal);
    } catch (cause) {
      signal.throwIfAborted();
      throw keeperFailure(cause, dirname(starter.socketOf(keeper.name)));
    }
  }

  return { replace, replaceIfMisplaced };
}
