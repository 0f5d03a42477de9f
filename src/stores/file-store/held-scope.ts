import { type Clock, DeadlineExceeded } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { isDefiniteFailure } from './files.ts';
import { type HostLocks, presumedDeadMs } from './store-root.ts';

/**
 * How long a verb may change things: other hosts presume this one dead some time after it. Starts when the lock or the name was taken, not
 * when the work or a retry begins. Without other hosts there is no limit.
 */
export interface HoldLimit {
  isOver(): boolean;
  /** Throws when the limit is over: this call must not change anything after that. The next call finds out how far this one came. */
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
