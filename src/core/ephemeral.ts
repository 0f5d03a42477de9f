import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Deletions } from './deletion.ts';
import { createEphemeralDestruction } from './ephemeral-destruction.ts';
import { createEphemeralRecords, type EphemeralRecord, type RequestedSize, requestIdOf } from './ephemeral-records.ts';
import { StowageError } from './errors.ts';
import { createFairPass, type FairPass } from './fair-pass.ts';
import { ownLabel } from './labels.ts';
import { ephemeralKey } from './lock-keys.ts';
import type { StoreName, Volume } from './model.ts';
import { nameFor } from './names.ts';
import type { Call, Operations } from './operations.ts';
import { isShared } from './placement.ts';
import type { Records } from './ports.ts';
import type { Publish, PublishOptions } from './publish.ts';
import type { StoreView } from './store-view.ts';
import type { Stores } from './stores.ts';
import type { Unpublish } from './unpublish.ts';
import { requestDiffers } from './volume-errors.ts';
import type { Volumes } from './volumes.ts';

/**
 * Volumes that live as long as their target: created at publish, destroyed at unpublish. A persistent list has each volume from before
 * its creation until after its destruction, so that no crash can leak one.
 */
export interface Ephemerals {
  /** The same key gives the same volume, with its current store and size. 'exists' if the request differs from the first one. */
  publish(key: string, want: EphemeralVolumeSpec, target: string, how: PublishOptions, call: Call): Promise<void>;
  /** False: no volume has this key. The volume is destroyed in the background once its store answers. */
  unpublish(key: string, target: string, call: Call): Promise<boolean>;
  /** Undefined: no volume has this key, or it is not created yet. */
  volume(key: string): Volume | undefined;
  /** Destroys volumes that were unpublished, and volumes that were created but never mounted. */
  reconcile(scope: Scope): Promise<void>;
}

export interface EphemeralVolumeSpec {
  /** The store to create the volume on, if it does not exist yet. */
  readonly store: StoreName;
  /** Undefined: no size was requested. */
  readonly bytes: bigint | undefined;
  readonly enforce: boolean;
}

export interface EphemeralParts {
  readonly records: Records;
  readonly stores: Pick<Stores, 'list' | 'view' | 'use'>;
  readonly volumes: Volumes;
  readonly deletions: Deletions;
  readonly mounts: { readonly publish: Publish; readonly unpublish: Unpublish };
  readonly operations: Operations;
  readonly clock: Clock;
  readonly log: Log;
}

/** The longest that an unpublish waits for the store to destroy the volume. */
const destroyMs = 3_000;
/** Per volume. */
const destroyDeadlineMs = 60_000;
/** One at a time on each store, so that a store that does not answer gets a single call. */
const inParallel = 1;
/** If a failure takes longer than this, skip the store's other volumes in this pass. */
const quickMs = 1_000;
/** After a reboot, leaves users time to mount the volume again. */
const unclaimedMs = 600_000;
const unending = new AbortController().signal;

export function createEphemerals(parts: EphemeralParts): Ephemerals {
  const { records, stores, volumes, mounts, operations, clock, log } = parts;
  const listed = createEphemeralRecords(records);
  const destruction = createEphemeralDestruction(parts, listed);
  /** Since when each volume has had no mount, by this process's clock. */
  const unclaimed = new Map<string, number>();

  async function create(
    key: string,
    store: StoreName,
    { bytes, enforce }: EphemeralVolumeSpec,
    call: Call,
  ): Promise<Volume> {
    const ownLabels = { [ownLabel('ephemeral')]: 'true' };
    const spec = { store, name: nameFor(key), bytes, enforce, access: undefined, labels: {}, ownLabels };
    return await volumes.create(spec, { ...call, requestId: requestIdOf(key) });
  }

  /** One pass per store, so that a store that does not answer does not delay the others. */
  const passes = new Map<StoreName, FairPass<string>>();

  async function reconcileStore(store: StoreName, due: readonly EphemeralRecord[], scope: Scope): Promise<void> {
    const pass = passes.get(store) ?? createFairPass(clock, { inParallel, itemMs: destroyDeadlineMs });
    passes.set(store, pass);
    const byKey = new Map(due.map((one) => [one.key, one]));
    const silent = new Error(`store ${store} is silent`);
    const passing = pass(byKey.keys(), scope, async (key, own) => {
      const one = byKey.get(key);
      if (one === undefined) return;
      const began = clock.elapsed();
      const isDone = await destruction.tryDestroy(one, own);
      // Do not wait for a store that does not answer once per volume. The next pass begins with the remaining volumes.
      if (!isDone && clock.elapsed() - began > quickMs) throw silent;
    });
    await passing.catch((thrown: unknown) => {
      if (thrown !== silent) throw thrown;
    });
  }

  /** Any mount of the volume counts: the target may contain a symbolic link, and mounts are recorded under the resolved path. */
  function isMounted(one: EphemeralRecord): boolean {
    const volume = listed.volumeOf(one);
    return (
      records.mounts.at(one.target) !== undefined || (volume !== undefined && records.mounts.of(volume.id).length > 0)
    );
  }

  function checkUnclaimed(one: EphemeralRecord): void {
    if (one.over || isMounted(one)) {
      unclaimed.delete(one.key);
      return;
    }
    const since = unclaimed.get(one.key) ?? clock.elapsed();
    unclaimed.set(one.key, since);
    if (clock.elapsed() - since < unclaimedMs) return;
    unclaimed.delete(one.key);
    listed.save({ ...one, over: true });
  }

  return {
    volume: (key) => {
      const one = listed.get(key);
      return one && listed.volumeOf(one);
    },
    publish: async (key, want, target, how, call) => {
      using _ = await operations.lock([ephemeralKey(key)], call.signal);
      const before = listed.get(key);
      const known = before && listed.volumeOf(before);
      const store = before?.store ?? want.store;
      const asked = { bytes: want.bytes === undefined ? null : String(want.bytes), enforce: want.enforce };
      // The inline policy applies to new volumes only; existing ones stay usable.
      if (known === undefined) refuseInline(stores.view(store));
      else if (!isSame(before?.asked ?? asked, asked)) throw requestDiffers(known);
      destruction.requested(key);
      listed.save({ key, store, target, over: false, asked });
      // A repeated request gets the existing volume as it is, even if the store's defaults have changed.
      const volume = (known && (await volumes.complete(known, call))?.volume) ?? (await create(key, store, want, call));
      await mounts.publish(volume.id, target, how, call);
    },
    unpublish: async (key, target, call) => {
      const one = listed.get(key);
      if (one === undefined) return false;
      listed.save({ ...one, over: true });
      // Force it: the data is destroyed next, and flushing it first could make the pod wait for a server that does not answer.
      await mounts.unpublish(target, listed.volumeOf(one)?.id, call, { force: true, claimTarget: true });
      // The destruction continues in the background after `destroyMs`.
      await endsWithin(destruction.tryDestroy(one, { signal: unending, log }), destroyMs, clock);
      return true;
    },
    reconcile: async (scope) => {
      for (const one of listed.list()) checkUnclaimed(one);
      // Volumes of removed stores stay on the list: the store may be added again.
      const asked = new Set(stores.list().map(({ config }) => config.name));
      const due = listed.list().filter(({ over, store }) => over && asked.has(store));
      await Promise.all(
        Array.from(
          Map.groupBy(due, ({ store }) => store),
          ([store, records]) => reconcileStore(store, records, scope),
        ),
      );
    },
  };
}

const isSame = (one: RequestedSize, other: RequestedSize): boolean =>
  one.bytes === other.bytes && one.enforce === other.enforce;

/** Anyone who can create a pod can use inline volumes, without a StorageClass, quota or RBAC, so shared stores must opt in. */
function refuseInline({ config, placement }: StoreView): void {
  if (config.policy.inline ?? !isShared(placement)) return;
  throw new StowageError(`store '${config.name}' does not allow inline volumes`, {
    code: 'denied',
    reason: 'inline-not-allowed',
    action:
      "Use a claim (for one that lives with the pod: ephemeral.volumeClaimTemplate), or ask the administrator to allow them by the store's option inline: true",
  });
}
