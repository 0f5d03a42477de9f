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
import type { StoreView } from '#core/stores.ts';
import type { NewVolume } from '#core/volumes.ts';
import type { NodeSelector, PersistentVolume, StorageClass } from '#wire/kube/types.ts';
import { unlessLeft } from './discard.ts';
import { handleOf, heldBy, type IsHad } from './handles.ts';
import type { Again } from './machinery/outcome.ts';
import { storeIdentity } from './names.ts';
import { refusalOf, type StoreObject } from './store-object.ts';

/** A volume for a claim. */
export interface Wanted {
  readonly claim: { readonly namespace: string; readonly name: string; readonly uid: string };
  /** Undefined: the only one that the driver has. */
  readonly store: string | undefined;
  readonly name: string;
  readonly bytes: bigint;
  readonly enforce: boolean;
  readonly access: Access;
  readonly labels: Labels;
  /** The one that the scheduler chose for its first pod. */
  readonly node: string | undefined;
  /** Where the class lets its volumes be. Empty: everywhere. */
  readonly allowed: NonNullable<StorageClass['allowedTopologies']>;
}

export interface Made {
  readonly volume: Pick<Volume, 'id' | 'name' | 'store' | 'bytes'>;
  /** Where it can be used. Undefined: everywhere. */
  readonly where: NodeSelector | undefined;
  /** What its store calls itself, if that is known. */
  readonly identity: string | undefined;
}

export interface Grown {
  readonly bytes: bigint;
  /** Whoever has it mounted has to see to it too. */
  readonly onNodes: boolean;
}

/**
 * Makes and ends the volumes of one driver: the core of this process those of `file.stowage.dev`, the agents of nodes those of
 * `local.stowage.dev`.
 */
export interface Provisioner {
  readonly driver: string;
  /** The same claim gets the same volume, whoever asks and however often. */
  create(want: Wanted, scope: Scope): Promise<Made | Again>;
  /** Another node than the one that the scheduler chose may have what this one refused. */
  isForAnother?(error: unknown): boolean;
  /** Calls when what could not be made before may be made now. */
  follow?(changed: () => void): void;
  /**
   * Takes away what was made for a claim that is gone, or has another volume. None is success; what anybody has, or what may hold
   * something, stays: whoever looks for volumes that nobody claims tells of it.
   */
  takeBack(uid: string, isHad: IsHad, scope: Scope): Promise<void>;
  /** The volume of a PersistentVolume. Absent is success, said only when the store that it was on has answered. In use: 'in-use'. */
  delete(volume: PersistentVolume, scope: Scope): Promise<void>;
  /** Its PersistentVolume is gone and the volume stays. */
  retain(volume: PersistentVolume, scope: Scope): Promise<void>;
  expand(volume: PersistentVolume, bytes: bigint, scope: Scope): Promise<Grown>;
}

export const labelsFor = ({ claim: { namespace, name, uid } }: Pick<Wanted, 'claim'>, cluster: string): Labels => ({
  [claimLabels.namespace]: namespace,
  [claimLabels.name]: name,
  [claimLabels.uid]: uid,
  [claimLabels.cluster]: cluster,
});

/** Somebody decided that the volume outlives its PersistentVolume. */
export const retainedLabel = ownLabel('retained');

/** Why a store that an object declares is not open. Undefined: there is no such object. */
export type WhyNotOpen = (store: string) => StowageError | undefined;

/** Of stores that can be worked on from here. */
export function createCoreProvisioner(core: Core, whyNotOpen: WhyNotOpen): Provisioner {
  const shared = (): readonly StoreView[] =>
    core.stores.list().filter(({ placement }) => driverFor(placement) === fileDriver);
  const call = (scope: Scope, requestId: string) => ({ ...scope, requestId });

  function storeFor(wanted: string | undefined): StoreView {
    const all = shared();
    const [only] = all;
    if (wanted === undefined && only !== undefined && all.length === 1) return only;
    const found = all.find(({ config }) => config.name === wanted);
    if (found !== undefined) return found;
    throw (wanted === undefined ? undefined : whyNotOpen(wanted)) ?? noSuchStore(wanted, names());
  }

  const identityOf = (store: string): string | undefined =>
    shared().find(({ config }) => config.name === store)?.store?.identity;

  const names = (): readonly StoreName[] => shared().map(({ config }) => config.name);

  function newVolume(want: Wanted): NewVolume {
    const { config, store } = storeFor(want.store);
    if (store !== undefined && !store.access.includes(want.access)) throw noSuchMode(config.name, want.access);
    const { name, bytes, access, labels } = want;
    const enforce = want.enforce ? { enforce: true } : {};
    return { store: config.name, name, bytes, access, labels, ...enforce, ownLabels: labelsFor(want, core.instance) };
  }

  return {
    driver: fileDriver.name,
    create: async (want, scope) => {
      const wanted = { stores: names(), want: () => newVolume(want) };
      const { volume, storeIdentity: identity } = await core.provision(wanted, call(scope, want.claim.uid));
      return { volume, where: undefined, identity };
    },
    takeBack: async (uid, isHad, scope) => {
      const volume = core.catalogue.madeBy(uid, names());
      if (volume === undefined || volume.labels[retainedLabel] !== undefined) return;
      if (await isHad(volume, scope.signal)) return;
      await unlessLeft(core.deletions.delete(volume.id, undefined, call(scope, `back:${uid}`), { discard: true }));
    },
    delete: async (volume, scope) => {
      const { store } = heldBy(volume);
      // A store that is no longer asked would make every volume of it look deleted.
      if (store !== undefined && !shared().some(({ config }) => config.name === store))
        throw whyNotOpen(store) ?? gone(store);
      try {
        const handle = handleOf(volume);
        await core.deletions.delete(handle, undefined, call(scope, `delete:${handle}`));
      } catch (thrown) {
        if (stowageError(thrown).reason !== 'volume-unknown') throw thrown;
        if (store !== undefined) refuseOtherPlace(volume, store, identityOf(store));
      }
    },
    retain: async (volume, scope) => {
      const handle = handleOf(volume);
      const own = { [retainedLabel]: 'true' };
      await core.volumes.label(handle, {}, undefined, call(scope, `retain:${handle}`), own);
    },
    expand: async (held, bytes, scope) => {
      const handle = handleOf(held);
      const before = await core.catalogue.resolve(handle, scope);
      const isLarger = before.bytes !== undefined && before.bytes >= bytes;
      const volume = isLarger
        ? before
        : await core.volumes.expand(handle, bytes, undefined, call(scope, `expand:${handle}:${bytes}`));
      return { bytes: volume.bytes ?? bytes, onNodes: volume.enforce };
    },
  };
}

export function noSuchStore(wanted: string | undefined, all: readonly string[]): StowageError {
  const stores = all.length === 0 ? 'there is none' : all.join(', ');
  const what = wanted === undefined ? 'the class names no store' : `there is no store ${quoted(wanted)} for the class`;
  return new StowageError(what, {
    code: 'invalid',
    reason: 'class-store-unknown',
    action: `Ask the administrator for a class whose parameter store is one of these: ${stores}`,
  });
}

export const createWhyNotOpen =
  (stores: { get(name: string): StoreObject | undefined }, kinds: ReadonlyMap<string, StoreKind>): WhyNotOpen =>
  (name) => {
    const object = stores.get(name);
    return object && (refusalOf(object, kinds) ?? notYet(name));
  };

export const notYet = (store: string): StowageError =>
  new StowageError(`store '${store}' is not open yet`, {
    code: 'unavailable',
    reason: 'store-not-open',
    action: 'Wait a moment. If the problem persists, ask the administrator to check the store: kubectl get stores',
  });

export const gone = (store: string): StowageError =>
  storeGone(
    store,
    'Recreate its Store object; or, to keep the data, set persistentVolumeReclaimPolicy to Retain and delete the PersistentVolume.',
  );

/** Throws for a volume that is not there where a Store of that name means another place than when it was made. */
export function refuseOtherPlace({ metadata }: PersistentVolume, store: string, now: string | undefined): void {
  const before = metadata.annotations?.[storeIdentity];
  if (before === undefined || before === now) return;
  // Closed at this moment, or of an agent that does not say it.
  if (now === undefined) throw notYet(store);
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

export const noSuchMode = (store: string, access: Access): StowageError =>
  new StowageError(`store '${store}' has no ${access} volumes`, {
    code: 'unsupported',
    reason: 'claim-unsupported',
    action: 'Use another volumeMode in the claim, or a class of another store.',
  });
