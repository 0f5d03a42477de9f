import type { ObservedTime } from './observed-time.ts';
import type { Expiry, Observer } from './trash-expiry.ts';
import type { VerbContext } from './verb-context.ts';

/** This instance as an observer of trash entries, with the times that it knows. */
export interface TrashObserver {
  /** Undefined: the server does not tell. */
  serverTime(): Promise<number | undefined>;
  observerAt(observed: number, serverNow: number): Observer;
  /** Undefined: the server's time is unknown. */
  current(): Promise<Observer | undefined>;
  /** The expiry of a volume that is being deleted now. */
  newExpiry(retention: number): Promise<Expiry>;
}

export function createTrashObserver({ storeRoot, clock }: VerbContext, observedTime: ObservedTime): TrashObserver {
  const { context, hostLocks } = storeRoot;

  const serverTime = async (): Promise<number | undefined> =>
    storeRoot.serverTime === undefined ? clock.now() : await storeRoot.serverTime();
  const observerAt = (observed: number, serverNow: number): Observer => ({
    instance: context.instance,
    isShared: hostLocks !== undefined,
    observed,
    serverNow: Math.round(serverNow),
  });

  return {
    serverTime,
    observerAt,
    current: async () => {
      const [serverNow, observed] = await Promise.all([serverTime(), observedTime.now()]);
      return serverNow === undefined ? undefined : observerAt(observed, serverNow);
    },
    newExpiry: async (retention) => {
      const [serverNow, seenAt] = await Promise.all([serverTime(), observedTime.now()]);
      return {
        ...(serverNow === undefined ? {} : { expiresAt: Math.round(serverNow) + retention }),
        retention,
        owner: context.instance,
        seen: { by: context.instance, at: seenAt },
      };
    },
  };
}
