import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { reasonOf } from '#wire/kube/errors.ts';
import { leases } from '#wire/kube/resources.ts';
import type { Lease } from '#wire/kube/types.ts';
import { type LeaseNote, noteOf, withNote } from './lease-note.ts';
import { microTime } from './micro-time.ts';

export interface LeaseLockOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly namespace: string;
  /** The name of the Lease. */
  readonly name: string;
  /** Unique for each process, also after a restart. */
  readonly identity: string;
  readonly note?: LeaseNote;
}

/** The Lease as this process sees it, and the calls on it. Every call has a deadline. */
export interface LeaseLock {
  /** The identity of the current leader, as last seen. Empty: no process leads. */
  readonly holder: string;
  /** Whether a call to acquire the Lease was sent, which may have taken effect even if it failed or was aborted. */
  readonly mayHaveAcquired: boolean;
  /** Undefined if another process leads. Optimistic locking lets only one of several candidates update the Lease. */
  acquire(parent: AbortSignal): Promise<Lease | undefined>;
  /** Updates the Lease that this process holds. `leftMs`: the time until another process may take over. */
  renew(lease: Lease, leftMs: number, parent: AbortSignal): Promise<Lease>;
  read(leftMs: number, parent: AbortSignal): Promise<Lease>;
  /** Releases the Lease, so that the next leader does not have to wait. Never throws. */
  release(parent: AbortSignal, log: Log): Promise<void>;
}

/** A candidate takes over after it has seen no renewal for this time. */
const leaseDurationMs = 15_000;
const callTimeoutMs = 5_000;

export const holderOf = (lease: Lease | undefined): string => lease?.spec?.holderIdentity ?? '';

export function createLeaseLock({ client, clock, namespace, name, identity, note }: LeaseLockOptions): LeaseLock {
  const leaseName = { namespace, name };
  let mayHaveAcquired = false;
  /**
   * The last state of the Lease, and since when this process has seen it, by its own clock. Clocks of machines differ, so the times in the
   * Lease are only for users: the Lease expires when no process changed it for its duration.
   */
  let observed: { readonly text: string; readonly lease: Lease; readonly since: number } | undefined;

  function observe(lease: Lease): Lease {
    const text = JSON.stringify([lease.metadata.uid, lease.spec]);
    if (observed?.text === text) observed = { ...observed, lease };
    else observed = { text, lease, since: clock.elapsed() };
    return lease;
  }

  function isFree(lease: Lease): boolean {
    if (holderOf(lease) === '' || holderOf(lease) === identity) return true;
    const durationMs = Math.max(leaseDurationMs, (lease.spec?.leaseDurationSeconds ?? 0) * 1_000);
    return observed !== undefined && clock.elapsed() - observed.since >= durationMs;
  }

  function acquiredLease(before: Lease | undefined): Lease {
    const now = microTime(clock.now());
    const isNew = holderOf(before) !== identity;
    const { acquireTime = now, leaseTransitions = 0 } = before?.spec ?? {};
    return {
      metadata: before?.metadata ?? leaseName,
      spec: {
        holderIdentity: identity,
        leaseDurationSeconds: leaseDurationMs / 1_000,
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

  async function acquire(signal: AbortSignal): Promise<Lease | undefined> {
    const found = await client.get(leases, leaseName, signal).catch((thrown: unknown) => {
      if (reasonOf(thrown) === 'NotFound') return undefined;
      throw thrown;
    });
    const text = noteOf(found, note);
    if (found !== undefined && !isFree(observe(found))) {
      const newText = await note?.whileWaiting(text);
      if (newText !== undefined) await client.update(leases, withNote(found, note, newText), signal);
      return undefined;
    }
    const noteText = await note?.whenAcquiring(text, signal);
    mayHaveAcquired = true;
    const acquired = withNote(acquiredLease(found), note, noteText);
    return observe(
      await (found === undefined ? client.create(leases, acquired, signal) : client.update(leases, acquired, signal)),
    );
  }

  async function release(parent: AbortSignal, log: Log): Promise<void> {
    try {
      await limitedCall(callTimeoutMs, parent, async (signal) => {
        const found = await client.get(leases, leaseName, signal);
        if (holderOf(found) !== identity) return;
        const spec = { ...found.spec, holderIdentity: '', leaseDurationSeconds: 1, renewTime: microTime(clock.now()) };
        await client.update(leases, { ...found, spec }, signal);
      });
    } catch (error) {
      log.warn('the Lease was not released: other processes wait until it expires', { error });
    }
  }

  return {
    get holder() {
      return holderOf(observed?.lease);
    },
    get mayHaveAcquired() {
      return mayHaveAcquired;
    },
    acquire: (parent) => limitedCall(callTimeoutMs, parent, acquire),
    renew: (lease, leftMs, parent) =>
      limitedCall(Math.min(callTimeoutMs, leftMs), parent, (signal) =>
        client.update(leases, acquiredLease(lease), signal),
      ),
    read: (leftMs, parent) =>
      limitedCall(Math.min(callTimeoutMs, leftMs), parent, (signal) => client.get(leases, leaseName, signal)),
    release,
  };
}
