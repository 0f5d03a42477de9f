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
  /** The same key gives the same volume, with its current store and size. Throws 'exists' if the request differs from the first one. */
  publish(key: string, spec: EphemeralVolumeSpec, target: string, options: PublishOptions, call: Call): Promise<void>;
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
const destroyWaitMs = 3_000;
/** The deadline for destroying one volume. */
const destroyDeadlineMs = 60_000;
/** One volume at a time on each store, so that a store that does not answer gets a single call. */
const maxConcurrentPerStore = 1;
/** If a failure takes longer than this, skip the store's other volumes in this pass. */
const maxFailureMs = 1_000;
/** After a reboot, leaves users time to mount the volume again. */
const maxUnmountedMs = 600_000;
const unending = new AbortController().signal;

export function createEphemerals(parts: EphemeralParts): Ephemerals {
  const { records, stores, volumes, mounts, operations, clock, log } = parts;
  const ephemeralRecords = createEphemeralRecords(records);
  const destruction = createEphemeralDestruction(parts, ephemeralRecords);
  /** Since when each volume has had no mount, by this process's clock. */
  const unmountedSince = new Map<string, number>();

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
    const pass =
      passes.get(store) ??
      createFairPass(clock, { maxConcurrent: maxConcurrentPerStore, itemTimeoutMs: destroyDeadlineMs });
    passes.set(store, pass);
    const byKey = new Map(due.map((one) => [one.key, one]));
    const storeIsSilent = new Error(`store ${store} is silent`);
    const currentPass = pass(byKey.keys(), scope, async (key, itemScope) => {
      const record = byKey.get(key);
      if (record === undefined) return;
      const began = clock.elapsed();
      const isDone = await destruction.tryDestroy(record, itemScope);
      // Do not wait for a store that does not answer once per volume. The next pass begins with the remaining volumes.
      if (!isDone && clock.elapsed() - began > maxFailureMs) throw storeIsSilent;
    });
    await currentPass.catch((thrown: unknown) => {
      if (thrown !== storeIsSilent) throw thrown;
    });
  }

  /** Any mount of the volume counts: the target may contain a symbolic link, and mounts are recorded under the resolved path. */
  function isMounted(record: EphemeralRecord): boolean {
    const volume = ephemeralRecords.volumeOf(record);
    return (
      records.mounts.byTarget(record.target) !== undefined ||
      (volume !== undefined && records.mounts.byVolume(volume.id).length > 0)
    );
  }

  function markIfUnclaimed(record: EphemeralRecord): void {
    if (record.over || isMounted(record)) {
      unmountedSince.delete(record.key);
      return;
    }
    const since = unmountedSince.get(record.key) ?? clock.elapsed();
    unmountedSince.set(record.key, since);
    if (clock.elapsed() - since < maxUnmountedMs) return;
    unmountedSince.delete(record.key);
    ephemeralRecords.save({ ...record, over: true });
  }

  return {
    volume: (key) => {
      const record = ephemeralRecords.get(key);
      return record && ephemeralRecords.volumeOf(record);
    },
    publish: async (key, spec, target, options, call) => {
      using _ = await operations.lock([ephemeralKey(key)], call.signal);
      const previousRecord = ephemeralRecords.get(key);
      const existingVolume = previousRecord && ephemeralRecords.volumeOf(previousRecord);
      const store = previousRecord?.store ?? spec.store;
      const requested = { bytes: spec.bytes === undefined ? null : String(spec.bytes), enforce: spec.enforce };
      // The inline policy applies to new volumes only; existing ones stay usable.
      if (existingVolume === undefined) refuseInline(stores.view(store));
      else if (!isSame(previousRecord?.asked ?? requested, requested)) throw requestDiffers(existingVolume);
      destruction.noteRequest(key);
      ephemeralRecords.save({ key, store, target, over: false, asked: requested });
      // A repeated request gets the existing volume as it is, even if the store's defaults have changed.
      const volume =
        (existingVolume && (await volumes.complete(existingVolume, call))?.volume) ??
        (await create(key, store, spec, call));
      await mounts.publish(volume.id, target, options, call);
    },
    unpublish: async (key, target, call) => {
      const one = ephemeralRecords.get(key);
      if (one === undefined) return false;
      ephemeralRecords.save({ ...one, over: true });
      // Force it: the data is destroyed next, and flushing it first could make the pod wait for a server that does not answer.
      await mounts.unpublish(target, ephemeralRecords.volumeOf(one)?.id, call, { force: true, claimTarget: true });
      // The destruction continues in the background after `destroyWaitMs`.
      await endsWithin(destruction.tryDestroy(one, { signal: unending, log }), destroyWaitMs, clock);
      return true;
    },
    reconcile: async (scope) => {
      for (const one of ephemeralRecords.list()) markIfUnclaimed(one);
      // Volumes of removed stores stay on the list: the store may be added again.
      const configured = new Set(stores.list().map(({ config }) => config.name));
      const due = ephemeralRecords.list().filter(({ over, store }) => over && configured.has(store));
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
      'Use a PersistentVolumeClaim (for one that lives as long as the pod: ephemeral.volumeClaimTemplate), or ask the administrator to set inline: true on the store',
  });
}
