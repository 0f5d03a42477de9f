import type { Clock } from '#base/clock.ts';
import type { KeyedLock } from '#base/keyed-lock.ts';
import type { Log } from '#base/log.ts';
import type { KnownKeeper } from './known-keeper.ts';

interface ReconnectOptions {
  readonly clock: Clock;
  readonly log: Log;
  /** How long to hold the copies while no keeper runs. */
  readonly keeperWaitMs: number;
  readonly keeperLocks: KeyedLock;
  readonly connect: (keeper: KnownKeeper) => Promise<unknown>;
  readonly onMountsLost: () => void;
  readonly signal: AbortSignal;
}

const reconnectDelayMs = { shortest: 20, longest: 500 } as const;

/**
 * Waits for the next keeper, and gives it the copies. Users of the mounts wait meanwhile. If no keeper starts in time, they get an error, and
 * the volumes are remounted.
 */
export async function reconnectUntilTimeout(keeper: KnownKeeper, options: ReconnectOptions): Promise<void> {
  const { clock, log, keeperWaitMs, onMountsLost, signal } = options;
  const since = clock.elapsed();
  const isWaiting = (): boolean => keeper.client === undefined && (keeper.copies?.mounts.length ?? 0) > 0;
  for (
    let delayMs: number = reconnectDelayMs.shortest;
    isWaiting();
    delayMs = Math.min(reconnectDelayMs.longest, delayMs * 2)
  ) {
    if (signal.aborted) return;
    if (clock.elapsed() - since > keeperWaitMs) {
      log.error('no keeper started in time: abandoning its mounts and remounting their volumes', {
        keeper: keeper.name,
      });
      keeper.copies?.drop();
    } else await tryReconnect(keeper, delayMs, options).catch(() => undefined);
  }
  onMountsLost();
}

async function tryReconnect(keeper: KnownKeeper, delayMs: number, options: ReconnectOptions): Promise<void> {
  const { clock, log, keeperLocks, connect, signal } = options;
  await clock.sleep(delayMs, signal);
  using _ = await keeperLocks.hold([keeper.name], signal);
  if (keeper.client !== undefined) return;
  await connect(keeper).catch((cause: unknown) =>
    log.warn('a keeper does not accept the descriptors of its predecessor', {
      keeper: keeper.name,
      why: String(cause),
    }),
  );
}
