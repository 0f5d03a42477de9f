import type { Scope } from '#base/log.ts';
import { claimLabels } from '#core/claim-labels.ts';
import type { Core } from '#core/core.ts';
import { driverFor, fileDriver } from '#core/csi-drivers.ts';
import { StowageError, stowageError } from '#core/errors.ts';
import { ownLabel } from '#core/labels.ts';
import type { Access, Labels, StoreName, Volume } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { StoreKind } from '#core/ports.ts';
import { storeGone } from '#core/store-errors.ts';
import type { StoreView } from '#core/store-view.ts';
import type { NewVolume } from '#core/volumes.ts';
import type { NodeSelector, PersistentVolume, StorageClass } from '#wire/kube/types.ts';
import { ignoreDiscardRefused } from './discard.ts';
import { type HasPersistentVolume, handleAndStoreOf, handleOf } from './handles.ts';
import type { RequeueAfter } from './machinery/outcome.ts';
import { storeIdentityAnnotation } from './names.ts';
import { refusalOf, type StoreObject } from './store-object.ts';

/** The volume that a claim requests. */
export interface VolumeRequest {
  readonly claim: { readonly namespace: string; readonly name: string; readonly uid: string };
  /** Undefined: the driver's only store. */
  readonly store: string | undefined;
  readonly name: string;
  readonly bytes: bigint;
  readonly enforce: boolean;
  readonly access: Access;
  readonly labels: Labels;
  /** The node that the scheduler chose for the first pod. */
  readonly node: string | undefined;
  /** The allowed topologies of the class. Empty: everywhere. */
  readonly allowedTopologies: NonNullable<StorageClass['allowedTopologies']>;
}

export interface ProvisionedVolume {
  readonly volume: Pick<Volume, 'id' | 'name' | 'store' | 'bytes'>;
  /** The nodes that can use the volume. Undefined: all. */
  readonly nodeSelector: NodeSelector | undefined;
  /** The identity of its store, if known. */
  readonly identity: string | undefined;
}

export interface ExpandedVolume {
  readonly bytes: bigint;
  /** Whether the nodes that have the volume mounted have to expand it too. */
  readonly nodeExpansionRequired: boolean;
}

/**
 * Creates and deletes the volumes of one driver: the core of this process does it for `file.stowage.dev`, the agents of the nodes for
 * `local.stowage.dev`.
 */
export interface Provisioner {
  readonly driver: string;
  /** Idempotent: the same claim gets the same volume, also from another controller. */
  create(request: VolumeRequest, scope: Scope): Promise<ProvisionedVolume | RequeueAfter>;
  /** Whether another node than the one that the scheduler chose may succeed after this error. */
  canTryAnotherNode?(error: unknown): boolean;
  /** Calls back when a retry of failed requests may succeed. */
  follow?(changed: () => void): void;
  /**
   * Deletes the volume that was created for a claim that is gone, or has another volume. Idempotent. A volume that a PersistentVolume
   * refers to, or that may contain data, stays: the orphan controllers report it.
   */
  deleteAbandoned(uid: string, hasPersistentVolume: HasPersistentVolume, scope: Scope): Promise<void>;
  /**
   * Deletes the volume of a PersistentVolume. Idempotent, but reports success for an absent volume only if its store has answered.
   * Throws 'in-use'.
   */
  delete(volume: PersistentVolume, scope: Scope): Promise<void>;
  /** Labels a volume that outlives its PersistentVolume. */
  retain(volume: PersistentVolume, scope: Scope): Promise<void>;
  expand(volume: PersistentVolume, bytes: bigint, scope: Scope): Promise<ExpandedVolume>;
}

export const claimLabelsFor = (
  { claim: { namespace, name, uid } }: Pick<VolumeRequest, 'claim'>,
  cluster: string,
): Labels => ({
  [claimLabels.namespace]: namespace,
  [claimLabels.name]: name,
  [claimLabels.uid]: uid,
  [claimLabels.cluster]: cluster,
});

/** The label of a volume that outlives its PersistentVolume, by the reclaim policy Retain. */
export const retainedLabel = ownLabel('retained');

/** Why a store that an object declares is not open. Undefined: there is no such object. */
export type WhyNotOpen = (store: string) => StowageError | undefined;

/** The provisioner for stores that this process opens. */
export function createCoreProvisioner(core: Core, whyNotOpen: WhyNotOpen): Provisioner {
  const fileStores = (): readonly StoreView[] =>
    core.stores.list().filter(({ placement }) => driverFor(placement) === fileDriver);
  const callWith = (scope: Scope, requestId: string) => ({ ...scope, requestId });

  function storeFor(wanted: string | undefined): StoreView {
    const all = fileStores();
    const [only] = all;
    if (wanted === undefined && only !== undefined && all.length === 1) return only;
    const found = all.find(({ config }) => config.name === wanted);
    if (found !== undefined) return found;
    throw (wanted === undefined ? undefined : whyNotOpen(wanted)) ?? unknownStore(wanted, fileStoreNames());
  }

  const identityOf = (store: string): string | undefined =>
    fileStores().find(({ config }) => config.name === store)?.store?.identity;

  const fileStoreNames = (): readonly StoreName[] => fileStores().map(({ config }) => config.name);

  function newVolume(request: VolumeRequest): NewVolume {
    const { config, store } = storeFor(request.store);
    if (store !== undefined && !store.access.includes(request.access))
      throw unsupportedAccess(config.name, request.access);
    const { name, bytes, access, labels } = request;
    const enforce = request.enforce ? { enforce: true } : {};
    return {
      store: config.name,
      name,
      bytes,
      access,
      labels,
      ...enforce,
      ownLabels: claimLabelsFor(request, core.instance),
    };
  }

  return {
    driver: fileDriver.name,
    create: async (request, scope) => {
      const wanted = { stores: fileStoreNames(), want: () => newVolume(request) };
      const { volume, storeIdentity: identity } = await core.provision(wanted, callWith(scope, request.claim.uid));
      return { volume, nodeSelector: undefined, identity };
    },
    deleteAbandoned: async (uid, hasPersistentVolume, scope) => {
      const volume = core.catalogue.createdByRequest(uid, fileStoreNames());
      if (volume === undefined || volume.labels[retainedLabel] !== undefined) return;
      if (await hasPersistentVolume(volume, scope.signal)) return;
      await ignoreDiscardRefused(
        core.deletions.delete(volume.id, undefined, callWith(scope, `back:${uid}`), { discard: true }),
      );
    },
    delete: async (volume, scope) => {
      const { store } = handleAndStoreOf(volume);
      // If the store is no longer configured, all its volumes would look deleted.
      if (store !== undefined && !fileStores().some(({ config }) => config.name === store))
        throw whyNotOpen(store) ?? storeRemoved(store);
      try {
        const handle = handleOf(volume);
        await core.deletions.delete(handle, undefined, callWith(scope, `delete:${handle}`));
      } catch (thrown) {
        if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
        if (store !== undefined) refuseMovedStore(volume, store, identityOf(store));
      }
    },
    retain: async (volume, scope) => {
      const handle = handleOf(volume);
      const ownLabels = { [retainedLabel]: 'true' };
      await core.volumes.label(handle, {}, undefined, callWith(scope, `retain:${handle}`), ownLabels);
    },
    expand: async (persistentVolume, bytes, scope) => {
      const handle = handleOf(persistentVolume);
      const before = await core.catalogue.resolve(handle, scope);
      const isLargeEnough = before.bytes !== undefined && before.bytes >= bytes;
      const volume = isLargeEnough
        ? before
        : await core.volumes.expand(handle, bytes, undefined, callWith(scope, `expand:${handle}:${bytes}`));
      return { bytes: volume.bytes ?? bytes, nodeExpansionRequired: volume.enforce };
    },
  };
}

export function unknownStore(wanted: string | undefined, all: readonly string[]): StowageError {
  const stores = all.length === 0 ? 'there is none' : all.join(', ');
  const message =
    wanted === undefined ? 'the class names no store' : `there is no store ${quoted(wanted)} for the class`;
  return new StowageError(message, {
    code: 'invalid',
    reason: 'class-store-unknown',
    action: `Ask the administrator for a class whose parameter store is one of these: ${stores}`,
  });
}

export const createWhyNotOpen =
  (stores: { get(name: string): StoreObject | undefined }, kinds: ReadonlyMap<string, StoreKind>): WhyNotOpen =>
  (name) => {
    const object = stores.get(name);
    return object && (refusalOf(object, kinds) ?? storeNotOpen(name));
  };

export const storeNotOpen = (store: string): StowageError =>
  new StowageError(`store '${store}' is not open yet`, {
    code: 'unavailable',
    reason: 'store-not-open',
    action: 'Wait a moment. If the problem persists, ask the administrator to check the store: kubectl get stores',
  });

export const storeRemoved = (store: string): StowageError =>
  storeGone(
    store,
    'Recreate its Store object; or, to keep the data, set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume.',
  );

/** Call it for a volume that was not found. Throws if the Store of that name is at another location than when the volume was created. */
export function refuseMovedStore({ metadata }: PersistentVolume, store: string, identity: string | undefined): void {
  const recorded = metadata.annotations?.[storeIdentityAnnotation];
  if (recorded === undefined || recorded === identity) return;
  // The store is closed at the moment, or the agent is too old to report the identity.
  if (identity === undefined) throw storeNotOpen(store);
  throw new StowageError(
    `store '${store}' is at another location than when the volume was created, and the volume may still be at the old one`,
    {
      code: 'conflict',
      reason: 'volume-store-moved',
      action:
        'Create a Store for the old location, under any name; or, to keep the data, set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume.',
    },
  );
}

export const unsupportedAccess = (store: string, access: Access): StowageError =>
  new StowageError(`store '${store}' has no ${access} volumes`, {
    code: 'unsupported',
    reason: 'claim-unsupported',
    action: 'Use another volumeMode in the claim, or a class of another store.',
  });
