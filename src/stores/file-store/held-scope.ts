import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { isDefiniteFailure } from './files.ts';
import { type HostLocks, presumedDeadMs } from './store-root.ts';

/**
 * Limits how long an operation may change the store: some time after the limit, other hosts presume this host dead. The time starts when
 * the operation took the lock or the name, not when its work or a retry begins. A store without other hosts has no limit.
 */
export interface HoldLimit {
  isOver(): boolean;
  /** Throws if the limit is over, so that the operation changes nothing more. The next operation completes or undoes the changes. */
  check(): void;
}

/** For work that has a volume locked against other hosts, or that changes no existing volume. */
export interface HeldScope extends Scope {
  readonly limit: HoldLimit;
}

export interface HeldScopes {
  limitFrom(since: number): HoldLimit;
  /** Runs the work with the volumes locked against other hosts, if the store has any. */
  withVolumesLocked<T>(ids: readonly VolumeId[], scope: Scope, work: (scope: HeldScope) => Promise<T>): Promise<T>;
}

export function createHeldScopes(hostLocks: HostLocks | undefined, clock: Clock): HeldScopes {
  function limitFrom(since: number): HoldLimit {
    const isOver = (): boolean => hostLocks !== undefined && clock.elapsed() - since > presumedDeadMs / 2;
    return {
      isOver,
      check: () => {
        if (isOver()) throw new DeadlineExceeded(presumedDeadMs / 2);
      },
    };
  }

  return {
    limitFrom,
    withVolumesLocked: async (ids, scope, work) => {
      if (hostLocks === undefined || ids.length === 0) return work({ ...scope, limit: limitFrom(clock.elapsed()) });
      const held = await hostLocks.hold(ids, scope.signal);
      try {
        const result = await work({ ...scope, limit: limitFrom(held.since) });
        await held[Symbol.asyncDispose]();
        return result;
      } catch (cause) {
        // If the server does not answer, don't wait for it a second time.
        const released = held[Symbol.asyncDispose]();
        if (isDefiniteFailure(cause) || cause instanceof DeadlineExceeded) await released;
        throw cause;
      }
    },
  };
}
