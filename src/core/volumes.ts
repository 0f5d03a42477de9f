import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Catalogue } from './catalogue.ts';
import type { EngineMounts } from './engine-mounts.ts';
import { stowageError } from './errors.ts';
import type { Events } from './events.ts';
import type { InUseCheck } from './in-use-check.ts';
import { checkLabels, mergeLabels, withOwnLabels } from './labels.ts';
import { nameKey, volumeKey } from './lock-keys.ts';
import type { Access, Inspection, Labels, StoreConfig, Usage, Volume, VolumeSpec } from './model.ts';
import type { MountQueries } from './mount-queries.ts';
import { newVolumeId, volumeName } from './names.ts';
import type { Call, Operations } from './operations.ts';
import type { Records, Store } from './ports.ts';
import type { StagedVolumeChanges } from './staged-volume-changes.ts';
import { facetOf } from './store-facets.ts';
import type { StoreLimits } from './store-limits.ts';
import type { KindsWithOffers } from './store-offers.ts';
import type { Stores } from './stores.ts';
import {
  accessUnsupported,
  cannotEnforce,
  cannotShrink,
  checkRevision,
  checkSize,
  enforcedWithoutSize,
  enforcementPermanent,
  noDefaultStore,
  requestDiffers,
  sizeRequired,
  storeReadOnly,
  volumeExists,
} from './volume-errors.ts';
import { specParams } from './volume-params.ts';
import { createVolumeSteps, type Step, type VolumeSteps } from './volume-steps.ts';

export interface VolumeParts {
  readonly records: Records;
  readonly kinds: KindsWithOffers;
  readonly stores: Stores;
  readonly catalogue: Catalogue;
  readonly operations: Operations;
  readonly mounts: Pick<MountQueries, 'isStaged' | 'filesystemOf'> & InUseCheck & StagedVolumeChanges;
  readonly engineMounts: Pick<EngineMounts, 'dropStale'>;
  readonly limits: StoreLimits;
  readonly events: Events;
  readonly clock: Clock;
  readonly instance: string;
}

export interface NewVolume {
  readonly store: string | undefined;
  readonly name: string;
  readonly bytes: bigint | undefined;
  /** Enforce the size. Requires `bytes`, or a default size of the store. */
  readonly enforce?: boolean | undefined;
  readonly access: Access | undefined;
  readonly labels: Labels;
  /** Labels with reserved keys, which only Stowage can set (core/labels.ts). */
  readonly ownLabels?: Labels | undefined;
}

/** A volume together with the identity of its store, since the store's name may refer to another store a moment later. */
export interface CreatedVolume {
  readonly volume: Volume;
  /** The identity of the volume's store. */
  readonly storeIdentity: string | undefined;
}

export interface Volumes {
  create(newVolume: NewVolume, call: Call): Promise<Volume>;
  /** Like `create`, for callers that need the identity of the store. */
  createWithStoreIdentity(newVolume: NewVolume, call: Call): Promise<CreatedVolume>;
  /**
   * Repeats the create with the volume's current properties, since a power cut or a kill may have left a record without data. Undefined:
   * the volume no longer exists.
   */
  complete(volume: Volume, call: Call): Promise<CreatedVolume | undefined>;
  inspect(ref: string, scope: Scope): Promise<Inspection>;
  usage(ref: string, scope: Scope): Promise<Usage>;
  /** Like `usage` in the background: stops when the store is about to close. */
  usageInBackground(volume: Volume, scope: Scope): Promise<Usage | undefined>;
  /** The volume's own file system, according to its store. Undefined: it has none. */
  filesystemOf(volume: Volume, scope: Scope): Promise<string | undefined>;
  /** Grows the file system to the size of the volume, if it is staged on this node. */
  growStaged(volume: Volume, scope: Scope): Promise<void>;
  expand(ref: string, bytes: bigint, expectedRevision: number | undefined, call: Call): Promise<Volume>;
  /** Enforces the volume's size from now on. Cannot be switched off. */
  enforce(ref: string, isEnforced: boolean, expectedRevision: number | undefined, call: Call): Promise<Volume>;
  rename(ref: string, name: string, expectedRevision: number | undefined, call: Call): Promise<Volume>;
  label(
    ref: string,
    change: Readonly<Record<string, string | null>>,
    expectedRevision: number | undefined,
    call: Call,
    /** As in NewVolume. */
    ownLabels?: Labels,
  ): Promise<Volume>;
  readonly steps: Readonly<Record<string, Step>>;
}

export function createVolumes(parts: VolumeParts): Volumes {
  const { records, stores, catalogue, mounts } = parts;
  const steps = createVolumeSteps(parts);
  const change = createChange(parts, steps);
  const createWithStoreIdentity = createCreate(parts, steps);

  return {
    create: async (newVolume, call) => (await createWithStoreIdentity(newVolume, call)).volume,
    createWithStoreIdentity,
    complete: createComplete(parts),
    inspect: async (ref, scope) => {
      const volume = await catalogue.resolve(ref, scope);
      const inspection = await stores.use(volume.store, (store) => store.get(volume.name, scope));
      if (inspection?.volume.id === volume.id) return inspection;
      return { volume, condition: 'missing', detail: 'the store no longer has a record of it' };
    },
    usage: async (ref, scope) => {
      const volume = await catalogue.resolve(ref, scope);
      return await stores.use(volume.store, (store) => facetOf(store, 'usage')(volume, scope));
    },
    usageInBackground: (volume, scope) =>
      stores.useInBackground(volume.store, async (store, closing) =>
        store.usage?.(volume, { ...scope, signal: AbortSignal.any([scope.signal, closing]) }),
      ),
    filesystemOf: async (volume, scope) =>
      mounts.filesystemOf(await stores.use(volume.store, (store) => store.source(volume, scope))),
    growStaged: (volume, scope) => stores.use(volume.store, (store) => mounts.grow(volume, store, scope)),
    expand: (ref, bytes, expectedRevision, call) =>
      change(ref, expectedRevision, call, async (volume, store) => {
        checkSize(bytes);
        if (volume.bytes !== undefined && bytes < volume.bytes) throw cannotShrink(volume, bytes);
        // A staged volume may have the new size on the store and a file system that still has to grow.
        const isGrown = async (): Promise<boolean> =>
          store.expand === undefined || !(await mounts.isStaged(volume.id, call));
        if (volume.bytes === bytes && (await isGrown())) return undefined;
        facetOf(store, 'expand');
        return { kind: 'volume.expand', params: { bytes: String(bytes) }, bytes };
      }),
    enforce: (ref, isEnforced, expectedRevision, call) =>
      change(ref, expectedRevision, call, async (volume, store) => {
        if (!isEnforced && (volume.enforce || store.enforcement?.always === true)) throw enforcementPermanent(volume);
        if (!isEnforced) return undefined;
        requireEnforceable(parts, store, volume.bytes, `volume '${volume.store}/${volume.name}'`);
        return volume.enforce ? undefined : { kind: 'volume.enforce', params: {} };
      }),
    rename: async (ref, to, expectedRevision, call) => {
      const name = volumeName(to);
      const plan = async (volume: Volume, store: Store): Promise<PlannedChange | undefined> => {
        if (name === volume.name) return undefined;
        facetOf(store, 'rename');
        await mounts.refuseInUse(volume, store, 'renamed', call);
        const present = records.volumes.byName(volume.store, name);
        if (present !== undefined) throw volumeExists(present);
        await mounts.finishUnmounts(volume.id, call);
        return { kind: 'volume.rename', params: { to: name } };
      };
      return await change(ref, expectedRevision, call, plan, name);
    },
    label: (ref, labels, expectedRevision, call, ownLabels) =>
      change(ref, expectedRevision, call, async (volume) => ({
        kind: 'volume.label',
        params: { labels: mergeLabels(volume.labels, labels, ownLabels) },
      })),
    steps,
  };
}

function createCreate(parts: VolumeParts, steps: VolumeSteps): Volumes['createWithStoreIdentity'] {
  const { records, stores, operations, limits, clock, instance } = parts;
  return async (newVolume, call) => {
    const name = volumeName(newVolume.name);
    const labels = withOwnLabels(checkLabels(newVolume.labels), newVolume.ownLabels ?? {});
    const chosenStore = newVolume.store ?? stores.defaultName;
    if (chosenStore === undefined) throw noDefaultStore();
    return await stores.use(chosenStore, async (store, config) => {
      const toCreated = (volume: Volume): CreatedVolume => ({ volume, storeIdentity: store.identity });
      if (config.policy.readOnly) throw storeReadOnly(store.name);
      const access = newVolume.access ?? 'filesystem';
      if (!store.access.includes(access)) throw accessUnsupported(store, access, parts.kinds);
      const bytes = sizeFor(store, config, newVolume.bytes);
      const enforce = newVolume.enforce ?? false;
      if (enforce) requireEnforceable(parts, store, bytes, `volume '${store.name}/${name}'`);
      const { requestId } = call;
      using _ = await operations.lock([nameKey(store.name, name)], call.signal);
      const present = records.volumes.byName(store.name, name);
      if (present !== undefined) {
        // Repeat the create: a power cut may have left a record without data.
        return toCreated(
          await store.create(requireSameRequest(present, { bytes, enforce, access, labels, requestId }), call),
        );
      }
      // The volume was renamed before the request was repeated: do not create a second one.
      const renamed = records.volumes.byRequest(store.name, requestId);
      if (renamed !== undefined) return toCreated(renamed);
      const createdAt = clock.now();
      const properties = { name, bytes, enforce, access, labels, requestId, createdAt, instance };
      const spec: VolumeSpec = { id: newVolumeId(), ...properties };
      using _place = limits.reserve(config, spec.id, bytes ?? 0n);
      const params = specParams(spec);
      const intent = { kind: 'volume.create', store: store.name, subject: `${store.name}/${name}`, params };
      return toCreated(
        await operations.run(intent, call, (work) => steps['volume.create'](store, config, params, work)),
      );
    });
  };
}

function createComplete({ stores, catalogue, operations }: VolumeParts): Volumes['complete'] {
  return async ({ id, store: storeName, name }, call) =>
    await stores.use(storeName, async (store) => {
      using _ = await operations.lock([volumeKey(id), nameKey(storeName, name)], call.signal);
      // Read the current properties: another host may have changed them, and the store rejects a create that differs from its record.
      const volume = await unlessUnknown(catalogue.resolve(id, call));
      if (volume === undefined) return undefined;
      // If it was renamed in the meantime, it exists, so there is nothing to complete.
      const isUnchanged = volume.store === storeName && volume.name === name;
      return { volume: isUnchanged ? await store.create(volume, call) : volume, storeIdentity: store.identity };
    });
}

async function unlessUnknown(lookup: Promise<Volume>): Promise<Volume | undefined> {
  try {
    return await lookup;
  } catch (thrown) {
    if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
    return undefined;
  }
}

/** The operation that a change needs. */
interface PlannedChange {
  readonly kind: keyof VolumeSteps;
  readonly params: Record<string, unknown>;
  /** The volume's total size after the change, to reserve. */
  readonly bytes?: bigint;
}

type Change = (
  ref: string,
  expectedRevision: number | undefined,
  call: Call,
  plan: (volume: Volume, store: Store) => Promise<PlannedChange | undefined>,
  newName?: string,
) => Promise<Volume>;

function createChange(parts: VolumeParts, steps: VolumeSteps): Change {
  const { stores, catalogue, operations, limits } = parts;
  return async (ref, expectedRevision, call, plan, newName) => {
    const unlockedVolume = await catalogue.resolve(ref, call);
    return await stores.use(unlockedVolume.store, async (store, config) => {
      if (config.policy.readOnly) throw storeReadOnly(store.name);
      const names = newName === undefined ? [unlockedVolume.name] : [unlockedVolume.name, newName];
      // Lock the id too: if the volume was renamed while this waited, the locked name is no longer the volume's.
      const keys = [volumeKey(unlockedVolume.id), ...names.map((name) => nameKey(unlockedVolume.store, name))];
      using _ = await operations.lock(keys, call.signal);
      const volume = await catalogue.resolve(unlockedVolume.id, call);
      checkRevision(volume, expectedRevision);
      const planned = await plan(volume, store);
      if (planned === undefined) return volume;
      using _place = planned.bytes === undefined ? undefined : limits.reserve(config, volume.id, planned.bytes);
      const params = { id: volume.id, name: volume.name, ...planned.params };
      const intent = { kind: planned.kind, store: store.name, subject: `${store.name}/${volume.name}`, params };
      return await operations.run(intent, call, (work) => steps[planned.kind](store, config, params, work));
    });
  };
}

function sizeFor(store: Store, config: StoreConfig, bytes: bigint | undefined): bigint | undefined {
  const size = bytes ?? config.policy.defaultSize;
  if (size === undefined && store.enforcement?.always === true) throw sizeRequired(store.name);
  if (size !== undefined) checkSize(size);
  return size;
}

function requireEnforceable(
  { kinds }: Pick<VolumeParts, 'kinds'>,
  store: Store,
  bytes: bigint | undefined,
  what: string,
): void {
  if (store.enforcement?.enforce === undefined) throw cannotEnforce(store.name, kinds);
  if (bytes === undefined) throw enforcedWithoutSize(what);
}

function requireSameRequest(
  present: Volume,
  request: Pick<Volume, 'bytes' | 'enforce' | 'access' | 'labels' | 'requestId'>,
): Volume {
  if (present.requestId !== request.requestId) throw volumeExists(present);
  const isSame =
    present.bytes === request.bytes &&
    present.enforce === request.enforce &&
    present.access === request.access &&
    JSON.stringify(present.labels) === JSON.stringify(request.labels);
  if (isSame) return present;
  throw requestDiffers(present);
}
