import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import type { Lease } from '#wire/kube/types.ts';
import { createLeaseLock, holderOf, type LeaseLock, type LeaseLockOptions } from './lease-lock.ts';

/** The work was stopped because another process may be the leader. */
export class LeadershipLost extends Error {
  override readonly name = 'LeadershipLost';
}

export interface LeaderOptions extends LeaseLockOptions {
  readonly random?: () => number;
}

/** Elects one leader among several processes. */
export interface Leader {
  readonly isLeading: boolean;
  /** The identity of the current leader, as last seen. Empty: no process leads. */
  readonly holder: string;
  /**
   * Waits until this process is the leader, then runs the work once. Releases the Lease when the work ends, or if `stop` aborts before it
   * starts. The work's signal aborts with the scope's, or if the Lease could not be renewed. In that case `run` throws LeadershipLost
   * when the work has ended, or after some seconds, and the process must exit.
   */
  run(work: (scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

/** The leader stops this long after the start of its last successful renewal. */
const renewDeadlineMs = 10_000;
const renewIntervalMs = 2_000;
const minRenewIntervalMs = 250;
/** How long the work may take to end, so that it ends before another process may lead. */
const shutdownGraceMs = 3_000;

/** The Lease, and when the call that last wrote it began: no other process can have seen it earlier. */
interface AcquiredLease {
  readonly lease: Lease;
  readonly confirmedAt: number;
}

export function createLeader(options: LeaderOptions): Leader {
  const { clock, name, identity, random = Math.random } = options;
  const lock = createLeaseLock(options);
  let isLeading = false;

  async function waitForLease(signal: AbortSignal, log: Log): Promise<AcquiredLease> {
    for (;;) {
      const confirmedAt = clock.elapsed();
      try {
        const lease = await lock.acquire(signal);
        if (lease !== undefined) return { lease, confirmedAt };
      } catch (error) {
        signal.throwIfAborted();
        // Another candidate was faster, or the API server is away.
        if (!['Conflict', 'AlreadyExists'].includes(reasonOf(error)))
          log.warn('cannot read or acquire the Lease', { error });
      }
      await clock.sleep(renewIntervalMs * (0.75 + random() / 2), signal);
    }
  }

  async function lead(
    work: (scope: Scope) => Promise<void>,
    acquired: AcquiredLease,
    { signal, log }: Scope,
  ): Promise<void> {
    const working = new AbortController();
    const renewalAbort = new AbortController();
    using _ = onAbort(signal, () => working.abort(signal.reason));
    let lossCause: unknown;
    const { promise: leaseLost, reject: rejectLoss } = Promise.withResolvers<never>();
    // Avoids an unhandled rejection if nothing awaits it below.
    leaseLost.catch(() => undefined);
    const renewal = renew(lock, clock, acquired, { signal: AbortSignal.any([renewalAbort.signal, signal]), log }).catch(
      (thrown: unknown) => {
        if (renewalAbort.signal.aborted || signal.aborted) return;
        lossCause = thrown;
        isLeading = false;
        working.abort(thrown);
        rejectLoss(thrown);
      },
    );
    isLeading = true;
    log.info('leading', { lease: name, identity });
    const workDone = work({ signal: working.signal, log });
    try {
      await Promise.race([workDone, leaseLost]);
    } catch (thrown) {
      if (lossCause === undefined) throw thrown;
      // Work that ignores its signal ends with the process.
      await endsWithin(workDone, shutdownGraceMs, clock);
    } finally {
      isLeading = false;
      renewalAbort.abort();
      await renewal;
      // If the scope's signal is aborted, no more requests can be sent.
      if (lossCause === undefined && !signal.aborted) await lock.release(signal, log);
    }
    if (lossCause !== undefined) throw lossCause;
  }

  return {
    get isLeading() {
      return isLeading;
    },
    get holder() {
      return lock.holder;
    },
    run: async (work, scope, stop) => {
      const stopOrAbort = AbortSignal.any([scope.signal, stop]);
      const acquired = await waitForLease(stopOrAbort, scope.log).catch(async (thrown: unknown) => {
        if (!stopOrAbort.aborted) throw thrown;
        // An aborted call may have acquired the Lease.
        if (lock.mayHaveAcquired && !scope.signal.aborted) await lock.release(scope.signal, scope.log);
        return undefined;
      });
      if (acquired !== undefined) await lead(work, acquired, scope);
    },
  };
}

/** Renews until the signal aborts. Throws LeadershipLost. */
async function renew(lock: LeaseLock, clock: Clock, first: AcquiredLease, { signal, log }: Scope): Promise<never> {
  let { lease, confirmedAt } = first;
  const remainingMs = (): number => confirmedAt + renewDeadlineMs - clock.elapsed();
  for (let isImmediateRetry = false; ; ) {
    // Retry more often as the deadline approaches.
    if (remainingMs() > 0 && !isImmediateRetry)
      await clock.sleep(
        Math.min(renewIntervalMs, remainingMs(), Math.max(minRenewIntervalMs, remainingMs() / 2)),
        signal,
      );
    const startedAt = clock.elapsed();
    const leftMs = remainingMs();
    if (leftMs <= 0) throw new LeadershipLost('the Lease could not be renewed in time');
    try {
      lease = await lock.renew(lease, leftMs, signal);
      confirmedAt = startedAt;
      isImmediateRetry = false;
    } catch (error) {
      signal.throwIfAborted();
      // A candidate wrote its note. Renew at once, so that this costs no time; after a second conflict in a row wait as usual.
      isImmediateRetry = reasonOf(error) === 'Conflict' && !isImmediateRetry;
      if (isImmediateRetry) log.debug('the Lease was changed by another process', { error });
      else log.warn('the Lease was not renewed', { error });
      lease = await rereadLease(lock, lease, remainingMs(), error, signal);
    }
  }
}

/** After a conflict: another process may have changed an annotation, or our own update succeeded and its answer was lost. */
async function rereadLease(
  lock: LeaseLock,
  lease: Lease,
  leftMs: number,
  error: unknown,
  signal: AbortSignal,
): Promise<Lease> {
  const reason = reasonOf(error);
  if (reason === 'NotFound') throw new LeadershipLost('the Lease is gone', { cause: error });
  if (leftMs <= 0 || reason !== 'Conflict') return lease;
  try {
    const found = await lock.read(leftMs, signal);
    if (holderOf(found) === holderOf(lease)) return found;
    throw new LeadershipLost(`“${holderOf(found)}” holds the Lease`, { cause: error });
  } catch (thrown) {
    signal.throwIfAborted();
    if (thrown instanceof LeadershipLost) throw thrown;
    if (reasonOf(thrown) === 'NotFound') throw new LeadershipLost('the Lease is gone', { cause: thrown });
    return lease;
  }
}
