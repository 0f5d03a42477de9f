import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { endsWithin } from '#base/wait.ts';
import type { Deletions } from './deletion.ts';
import { errorCodes } from './error-codes.ts';
import { StowageError, stowageError } from './errors.ts';
import { createFairPass, type FairPass } from './fair-pass.ts';
import { ownLabel } from './labels.ts';
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

interface EphemeralRecord {
  readonly key: string;
  readonly store: StoreName;
  readonly target: string;
  /** The volume was unpublished and must be destroyed. */
  readonly over: boolean;
  /** The original request. Undefined: an older version did not record it. */
  readonly asked?: RequestedSize | undefined;
}

interface RequestedSize {
  readonly bytes: string | null;
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

const settingKey = 'ephemeral.volumes';
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
/** A server may carry out a delayed request even after it has answered a later one. */
const lateMs = 30_000;
const unending = new AbortController().signal;

export function createEphemerals(parts: EphemeralParts): Ephemerals {
  const { records, stores, volumes, deletions, mounts, operations, clock, log } = parts;
  const listed = (): readonly EphemeralRecord[] => JSON.parse(records.settings.get(settingKey) ?? '[]');
  const list = (key: string): EphemeralRecord | undefined => listed().find((one) => one.key === key);
  const save = (one: EphemeralRecord): void => set([...listed().filter(({ key }) => key !== one.key), one]);
  const forget = (key: string): void => set(listed().filter((one) => one.key !== key));
  const set = (all: readonly EphemeralRecord[]): void => records.settings.set(settingKey, JSON.stringify(all));
  /** Since when each volume has had no mount, by this process's clock. */
  const unclaimed = new Map<string, number>();
  /** Since when the store has reported that it does not have the volume, by this process's clock. */
  const absent = new Map<string, number>();

  const requestId = (key: string): string => `ephemeral:${key}`;
  const volumeOf = ({ key, store }: EphemeralRecord): Volume | undefined =>
    records.volumes.byRequest(store, requestId(key));
  const keyOf = (key: string): string => `ephemeral ${key}`;

  /** If the answer to the create was lost, the store has the volume and our records do not. Throws if the store does not answer. */
  async function findUnrecorded({ key, store }: EphemeralRecord, scope: Scope): Promise<Volume | undefined> {
    const made = (await stores.use(store, (open) => open.get(nameFor(key), scope)))?.volume;
    if (made?.requestId !== requestId(key)) return undefined;
    records.volumes.put(made);
    return made;
  }

  async function create(
    key: string,
    store: StoreName,
    { bytes, enforce }: EphemeralVolumeSpec,
    call: Call,
  ): Promise<Volume> {
    const ownLabels = { [ownLabel('ephemeral')]: 'true' };
    const spec = { store, name: nameFor(key), bytes, enforce, access: undefined, labels: {}, ownLabels };
    return await volumes.create(spec, { ...call, requestId: requestId(key) });
  }

  async function destroy(one: EphemeralRecord, scope: Scope): Promise<void> {
    using _ = await operations.lock([keyOf(one.key)], scope.signal);
    if (list(one.key)?.over !== true) return;
    const volume = volumeOf(one) ?? (await findUnrecorded(one, scope));
    if (volume === undefined && !isAbsentForGood(one.key)) return;
    try {
      if (volume !== undefined)
        await deletions.delete(
          volume.id,
          undefined,
          { ...scope, requestId: `${requestId(one.key)}:end` },
          { destroy: true },
        );
    } catch (thrown) {
      if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    }
    absent.delete(one.key);
    forget(one.key);
  }

  function isAbsentForGood(key: string): boolean {
    const since = absent.get(key) ?? clock.elapsed();
    absent.set(key, since);
    return clock.elapsed() - since >= lateMs;
  }

  /** False: it failed and is retried later. */
  async function tryDestroy(one: EphemeralRecord, scope: Scope): Promise<boolean> {
    try {
      await destroy(one, scope);
      return true;
    } catch (thrown) {
      const { message, code } = stowageError(thrown);
      const level = errorCodes[code].retry ? 'info' : 'warn';
      log[level]('a volume that is no longer needed could not be destroyed; it is tried again', { why: message });
      return false;
    }
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
      const isDone = await tryDestroy(one, own);
      // Do not wait for a store that does not answer once per volume. The next pass begins with the remaining volumes.
      if (!isDone && clock.elapsed() - began > quickMs) throw silent;
    });
    await passing.catch((thrown: unknown) => {
      if (thrown !== silent) throw thrown;
    });
  }

  /** Any mount of the volume counts: the target may contain a symbolic link, and mounts are recorded under the resolved path. */
  function isMounted(one: EphemeralRecord): boolean {
    const volume = volumeOf(one);
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
    save({ ...one, over: true });
  }

  return {
    volume: (key) => {
      const one = list(key);
      return one && volumeOf(one);
    },
    publish: async (key, want, target, how, call) => {
      using _ = await operations.lock([keyOf(key)], call.signal);
      const before = list(key);
      const known = before && volumeOf(before);
      const store = before?.store ?? want.store;
      const asked = { bytes: want.bytes === undefined ? null : String(want.bytes), enforce: want.enforce };
      // The inline policy applies to new volumes only; existing ones stay usable.
      if (known === undefined) refuseInline(stores.view(store));
      else if (!isSame(before?.asked ?? asked, asked)) throw requestDiffers(known);
      absent.delete(key);
      save({ key, store, target, over: false, asked });
      // A repeated request gets the existing volume as it is, even if the store's defaults have changed.
      const volume = (known && (await volumes.complete(known, call))?.volume) ?? (await create(key, store, want, call));
      await mounts.publish(volume.id, target, how, call);
    },
    unpublish: async (key, target, call) => {
      const one = list(key);
      if (one === undefined) return false;
      save({ ...one, over: true });
      // Force it: the data is destroyed next, and flushing it first could make the pod wait for a server that does not answer.
      await mounts.unpublish(target, volumeOf(one)?.id, call, { force: true, claimTarget: true });
      // The destruction continues in the background after `destroyMs`.
      await endsWithin(tryDestroy(one, { signal: unending, log }), destroyMs, clock);
      return true;
    },
    reconcile: async (scope) => {
      for (const one of listed()) checkUnclaimed(one);
      // Volumes of removed stores stay on the list: the store may be added again.
      const asked = new Set(stores.list().map(({ config }) => config.name));
      const due = listed().filter(({ over, store }) => over && asked.has(store));
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
