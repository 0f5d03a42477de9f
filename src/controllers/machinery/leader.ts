import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { leases } from '#wire/kube/resources.ts';
import type { Lease } from '#wire/kube/types.ts';
import { type LeaseNote, noteOf, withNote } from './lease-note.ts';
import { microTime } from './micro-time.ts';

/** The work was stopped because another process may be the leader. */
export class LeadershipLost extends Error {
  override readonly name = 'LeadershipLost';
}

export interface LeaderOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** The name of the Lease. */
  readonly name: string;
  /** Unique for each process, also after a restart. */
  readonly identity: string;
  readonly note?: LeaseNote;
  readonly random?: () => number;
}

/** Elects one leader among several processes. */
export interface Leader {
  readonly isLeading: boolean;
  /** The identity of the current leader, as last seen. Empty: nobody. */
  readonly holder: string;
  /**
   * Waits until this process is the leader, then runs the work once. Releases the Lease when the work ends, or if `stop` aborts before it
   * starts. The work's signal aborts with the scope's, or if the Lease could not be renewed. In that case `run` throws LeadershipLost
   * when the work has ended, or after some seconds, and the process must exit.
   */
  run(work: (scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

/** A candidate takes over after it has seen no renewal for this time. */
const leaseMs = 15_000;
/** The leader stops this long after the start of its last successful renewal. */
const renewDeadlineMs = 10_000;
const renewMs = 2_000;
const minRenewMs = 250;
const callMs = 5_000;
/** How long the work may take to end. It ends before another process may lead. */
const shutdownMs = 3_000;

export function createLeader(options: LeaderOptions): Leader {
  const { client, clock, namespace, name, identity, note, random = Math.random } = options;
  const at = { namespace, name };
  let isLeading = false;
  let hasTried = false;
  /**
   * The last state of the Lease, and since when this process has seen it, by its own clock. Clocks of machines differ, so the times in the
   * Lease are only for people: it expires when nobody changed it for its duration.
   */
  let observed: { readonly text: string; readonly lease: Lease; readonly since: number } | undefined;

  function observe(lease: Lease): Lease {
    const text = JSON.stringify([lease.metadata.uid, lease.spec]);
    if (observed?.text === text) observed = { ...observed, lease };
    else observed = { text, lease, since: clock.elapsed() };
    return lease;
  }
  const holderOf = (lease: Lease | undefined): string => lease?.spec?.holderIdentity ?? '';

  function isFree(lease: Lease): boolean {
    if (holderOf(lease) === '' || holderOf(lease) === identity) return true;
    const lastsMs = Math.max(leaseMs, (lease.spec?.leaseDurationSeconds ?? 0) * 1_000);
    return observed !== undefined && clock.elapsed() - observed.since >= lastsMs;
  }

  function acquiredLease(before: Lease | undefined): Lease {
    const now = microTime(clock.now());
    const isNew = holderOf(before) !== identity;
    const { acquireTime = now, leaseTransitions = 0 } = before?.spec ?? {};
    return {
      metadata: before?.metadata ?? at,
      spec: {
        holderIdentity: identity,
        leaseDurationSeconds: leaseMs / 1_000,
        renewTime: now,
        acquireTime: isNew ? now : acquireTime,
        leaseTransitions: isNew && before !== undefined ? leaseTransitions + 1 : leaseTransitions,
      },
    };
  }

  async function limitedCall<T>(
    ms: number,
    parent: AbortSignal,
    call: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    using limit = clock.deadline(ms, parent);
    return await call(limit.signal);
  }

  /** Undefined if another process leads. Optimistic locking lets only one of several candidates update the Lease. */
  async function acquire(signal: AbortSignal): Promise<Lease | undefined> {
    const found = await client.get(leases, at, signal).catch((thrown: unknown) => {
      if (reasonOf(thrown) === 'NotFound') return undefined;
      throw thrown;
    });
    const text = noteOf(found, note);
    if (found !== undefined && !isFree(observe(found))) {
      const changed = await note?.whileWaiting(text);
      if (changed !== undefined) await client.update(leases, withNote(found, note, changed), signal);
      return undefined;
    }
    const own = await note?.whenAcquiring(text, signal);
    hasTried = true;
    const mine = withNote(acquiredLease(found), note, own);
    return observe(
      await (found === undefined ? client.create(leases, mine, signal) : client.update(leases, mine, signal)),
    );
  }

  /** Returns the Lease, and when the call that acquired it began: no other process can have seen it earlier. */
  async function waitForLease(
    signal: AbortSignal,
    log: Log,
  ): Promise<{ readonly lease: Lease; readonly since: number }> {
    for (;;) {
      const since = clock.elapsed();
      try {
        const lease = await limitedCall(callMs, signal, acquire);
        if (lease !== undefined) return { lease, since };
      } catch (error) {
        signal.throwIfAborted();
        // Another candidate was faster, or the API server is away.
        if (!['Conflict', 'AlreadyExists'].includes(reasonOf(error)))
          log.warn('cannot read or acquire the Lease', { error });
      }
      await clock.sleep(renewMs * (0.75 + random() / 2), signal);
    }
  }

  /** Renews until the signal aborts. Throws LeadershipLost. */
  async function renew(
    first: { readonly lease: Lease; readonly since: number },
    signal: AbortSignal,
    log: Log,
  ): Promise<never> {
    let { lease, since } = first;
    const left = (): number => since + renewDeadlineMs - clock.elapsed();
    for (let isImmediateRetry = false; ; ) {
      // Retry more often as the deadline approaches.
      if (left() > 0 && !isImmediateRetry)
        await clock.sleep(Math.min(renewMs, left(), Math.max(minRenewMs, left() / 2)), signal);
      const began = clock.elapsed();
      const leftMs = left();
      if (leftMs <= 0) throw new LeadershipLost('the Lease could not be renewed in time');
      try {
        lease = await limitedCall(Math.min(callMs, leftMs), signal, (call) =>
          client.update(leases, acquiredLease(lease), call),
        );
        since = began;
        isImmediateRetry = false;
      } catch (error) {
        signal.throwIfAborted();
        // A candidate wrote its note. Renew at once, so that this costs no time; after a second conflict in a row wait as usual.
        isImmediateRetry = reasonOf(error) === 'Conflict' && !isImmediateRetry;
        if (isImmediateRetry) log.debug('the Lease was changed by another process', { error });
        else log.warn('the Lease was not renewed', { error });
        lease = await rereadLease(lease, Math.min(callMs, left()), error, signal);
      }
    }
  }

  /** After a conflict: another process may have changed an annotation, or our own update succeeded and its answer was lost. */
  async function rereadLease(lease: Lease, leftMs: number, error: unknown, signal: AbortSignal): Promise<Lease> {
    const reason = reasonOf(error);
    if (reason === 'NotFound') throw new LeadershipLost('the Lease is gone', { cause: error });
    if (leftMs <= 0 || reason !== 'Conflict') return lease;
    try {
      const found = await limitedCall(leftMs, signal, (call) => client.get(leases, at, call));
      if (holderOf(found) === identity) return found;
      throw new LeadershipLost(`“${holderOf(found)}” holds the Lease`, { cause: error });
    } catch (thrown) {
      signal.throwIfAborted();
      if (thrown instanceof LeadershipLost) throw thrown;
      if (reasonOf(thrown) === 'NotFound') throw new LeadershipLost('the Lease is gone', { cause: thrown });
      return lease;
    }
  }

  /** Releases the Lease, so that the next leader does not have to wait. */
  async function release(parent: AbortSignal, log: Log): Promise<void> {
    try {
      await limitedCall(callMs, parent, async (signal) => {
        const found = await client.get(leases, at, signal);
        if (holderOf(found) !== identity) return;
        const spec = { ...found.spec, holderIdentity: '', leaseDurationSeconds: 1, renewTime: microTime(clock.now()) };
        await client.update(leases, { ...found, spec }, signal);
      });
    } catch (error) {
      log.warn('the Lease was not released: other processes wait until it expires', { error });
    }
  }

  async function lead(
    work: (scope: Scope) => Promise<void>,
    got: { readonly lease: Lease; readonly since: number },
    { signal, log }: Scope,
  ): Promise<void> {
    const working = new AbortController();
    const renewing = new AbortController();
    using _ = onAbort(signal, () => working.abort(signal.reason));
    let lost: unknown;
    const { promise: loss, reject: lose } = Promise.withResolvers<never>();
    // Avoids an unhandled rejection if nothing awaits it below.
    loss.catch(() => undefined);
    const renewal = renew(got, AbortSignal.any([renewing.signal, signal]), log).catch((thrown: unknown) => {
      if (renewing.signal.aborted || signal.aborted) return;
      lost = thrown;
      isLeading = false;
      working.abort(thrown);
      lose(thrown);
    });
    isLeading = true;
    log.info('leading', { lease: name, identity });
    const worked = work({ signal: working.signal, log });
    try {
      await Promise.race([worked, loss]);
    } catch (thrown) {
      if (lost === undefined) throw thrown;
      // Work that ignores its signal ends with the process.
      await endsWithin(worked, shutdownMs, clock);
    } finally {
      isLeading = false;
      renewing.abort();
      await renewal;
      // If the scope's signal is aborted, no request can be sent any more.
      if (lost === undefined && !signal.aborted) await release(signal, log);
    }
    if (lost !== undefined) throw lost;
  }

  return {
    get isLeading() {
      return isLeading;
    },
    get holder() {
      return holderOf(observed?.lease);
    },
    run: async (work, scope, stop) => {
      const either = AbortSignal.any([scope.signal, stop]);
      const got = await waitForLease(either, scope.log).catch(async (thrown: unknown) => {
        if (!either.aborted) throw thrown;
        // An aborted call may have acquired the Lease.
        if (hasTried && !scope.signal.aborted) await release(scope.signal, scope.log);
        return undefined;
      });
      if (got !== undefined) await lead(work, got, scope);
    },
  };
}
