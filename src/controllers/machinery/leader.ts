import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { leases } from '#wire/kube/resources.ts';
import type { Lease } from '#wire/kube/types.ts';
import { type LeaseNote, noteOf, withNote } from './lease-note.ts';
import { microTime } from './micro-time.ts';

/** The work was ended because another may lead by now. */
export class LeadershipLost extends Error {
  override readonly name = 'LeadershipLost';
}

export interface LeaderOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** Of the Lease. */
  readonly name: string;
  /** Of this process: no other has it, not even the same one after a restart. */
  readonly identity: string;
  readonly note?: LeaseNote;
  readonly random?: () => number;
}

/** One process of several at a time. */
export interface Leader {
  readonly isLeading: boolean;
  /** Who leads, as far as is known; empty: nobody. */
  readonly holder: string;
  /**
   * Waits until this process leads, then works, once. When the work ends, or `stop` comes before it begins, the Lease is given
   * back. Its signal ends with the scope's, or when the Lease could not be renewed: then it throws LeadershipLost as soon as
   * the work has ended, or some seconds later, and the process must end with it.
   */
  run(work: (scope: Scope) => Promise<void>, scope: Scope, stop: AbortSignal): Promise<void>;
}

/** Whoever does not hear of the leader for so long takes over. */
const leaseMs = 15_000;
/** The leader stops that long after it began to renew for the last time with success. */
const renewDeadlineMs = 10_000;
const renewMs = 2_000;
const minRenewMs = 250;
const callMs = 5_000;
/** There is time left before another may lead. */
const shutdownMs = 3_000;

export function createLeader(options: LeaderOptions): Leader {
  const { client, clock, namespace, name, identity, note, random = Math.random } = options;
  const at = { namespace, name };
  let isLeading = false;
  let hasTried = false;
  /**
   * What was last seen, and since when it is so by our own clock. Clocks of machines differ, so the times in a Lease are for
   * people: it has run out when nobody changed it for as long as it lasts.
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

  /** Undefined: another leads. The API server lets only one of those who saw the same Lease change it. */
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
    return observe(await (found === undefined ? client.create(leases, mine, signal) : client.update(leases, mine, signal)));
  }

  /** Gives the Lease, and when the call that got it began: nobody can have seen it before. */
  async function waitForLease(signal: AbortSignal, log: Log): Promise<{ readonly lease: Lease; readonly since: number }> {
    for (;;) {
      const since = clock.elapsed();
      try {
        const lease = await limitedCall(callMs, signal, acquire);
        if (lease !== undefined) return { lease, since };
      } catch (error) {
        signal.throwIfAborted();
        // Another was quicker, or the API server is not there.
        if (!['Conflict', 'AlreadyExists'].includes(reasonOf(error)))
          log.warn('cannot read or acquire the Lease', { error });
      }
      await clock.sleep(renewMs * (0.75 + random() / 2), signal);
    }
  }

  /** Until the signal, or until it is lost. */
  async function renew(
    first: { readonly lease: Lease; readonly since: number },
    signal: AbortSignal,
    log: Log,
  ): Promise<never> {
    let { lease, since } = first;
    const left = (): number => since + renewDeadlineMs - clock.elapsed();
    for (let isImmediateRetry = false; ; ) {
      // More often as the end comes nearer.
      if (left() > 0 && !isImmediateRetry) await clock.sleep(Math.min(renewMs, left(), Math.max(minRenewMs, left() / 2)), signal);
      const began = clock.elapsed();
      const leftMs = left();
      if (leftMs <= 0) throw new LeadershipLost('the Lease could not be renewed in time');
      try {
        lease = await limitedCall(Math.min(callMs, leftMs), signal, (call) => client.update(leases, acquiredLease(lease), call));
        since = began;
        isImmediateRetry = false;
      } catch (error) {
        signal.throwIfAborted();
        // A candidate wrote its note. The leader renews at once, so that this costs it no time; the second time it waits as usual.
        isImmediateRetry = reasonOf(error) === 'Conflict' && !isImmediateRetry;
        if (isImmediateRetry) log.debug('the Lease was changed by another process', { error });
        else log.warn('the Lease was not renewed', { error });
        lease = await rereadLease(lease, Math.min(callMs, left()), error, signal);
      }
    }
  }

  /** Somebody else may have changed something about it that is not who leads, or we ourselves, without having heard of it. */
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

  /** So that the next one need not wait. */
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
    const end = (): void => working.abort(signal.reason);
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) end();
    let lost: unknown;
    const { promise: loss, reject: lose } = Promise.withResolvers<never>();
    // Told to whoever waits for it below, or to nobody.
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
      // Work that does not hear its signal ends with the process.
      await endsWithin(worked, shutdownMs, clock);
    } finally {
      isLeading = false;
      signal.removeEventListener('abort', end);
      renewing.abort();
      await renewal;
      // Whoever was ended from outside has a signal by which nothing can be sent any more.
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
        // It may have become ours by a call that was stopped.
        if (hasTried && !scope.signal.aborted) await release(scope.signal, scope.log);
        return undefined;
      });
      if (got !== undefined) await lead(work, got, scope);
    },
  };
}
