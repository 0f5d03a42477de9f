import type { Scope } from '#base/log.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type ControllerContext, ignoreNotFound } from './controller-context.ts';
import { createHasPersistentVolume } from './handles.ts';
import { keyOf } from './machinery/cache.ts';
import { done, type ReconcileDone } from './machinery/outcome.ts';
import { volumeNameFor } from './names.ts';
import type { Provisioner } from './provisioner.ts';

/** A volume that is being created. Dispose of it when the creation has succeeded or failed. */
export interface VolumeCreation extends Disposable {
  /** Call it when the PersistentVolume is written: other controllers take over. */
  markWritten(): void;
}

/**
 * Cleans up after claims that were deleted, or got another volume, before their PersistentVolume was written. The work has keys of its own,
 * with the claim's UID: a claim that is recreated under the same name does not wait for the cleanup of the first one, and gets no Events
 * about it. The orphan controllers find volumes that an earlier leader left behind.
 */
export interface AbandonedClaims {
  /** Call it before creating a volume. Undefined while an earlier volume of the claim is being deleted. */
  beginCreation(claim: PersistentVolumeClaim, provisioner: Provisioner): VolumeCreation | undefined;
  /** The cleanup keys to reconcile after a change of this claim. */
  keysOf(claim: PersistentVolumeClaim): readonly string[];
  isKey(key: string): boolean;
  reconcile(key: string, scope: Scope): Promise<ReconcileDone>;
}

/** A volume of a claim whose PersistentVolume may not be written. */
interface UnwrittenVolume {
  readonly provisioner: Provisioner;
  /** A creation or a deletion is in progress, never both. */
  isBusy: boolean;
}

/** Names in Kubernetes cannot contain it. */
const separator = '#';

/** `add` enqueues a key: a cleanup key, or that of a claim that may have waited for a volume name. */
export function createAbandonedClaims(
  { client, caches }: Pick<ControllerContext, 'client' | 'caches'>,
  add: (key: string) => void,
): AbandonedClaims {
  const hasPersistentVolume = createHasPersistentVolume(client, caches);
  /** By the UID of the claim. */
  const unwritten = new Map<string, UnwrittenVolume>();

  function keysOf({ metadata }: PersistentVolumeClaim): readonly string[] {
    const { uid = '' } = metadata;
    const key = keyOf({ metadata });
    return unwritten.has(uid) && !isUnbound(caches.claims.get(key), uid) ? [`${key}${separator}${uid}`] : [];
  }

  /** Asks the API server for the claim before deleting anything, since the cache may be behind. Returns whether the cleanup is done. */
  async function deleteAbandoned(
    key: string,
    uid: string,
    { provisioner }: UnwrittenVolume,
    scope: Scope,
  ): Promise<boolean> {
    const [namespace = '', name = ''] = key.split('/');
    const claim = await ignoreNotFound(client.get(claims, { namespace, name }, scope.signal));
    if (isUnbound(claim, uid)) return false;
    const volume = await ignoreNotFound(client.get(persistentVolumes, { name: volumeNameFor(uid) }, scope.signal));
    if (volume === undefined) {
      scope.log.info('deleting the volume of an abandoned claim, unless a PersistentVolume refers to it', { uid });
      await provisioner.deleteAbandoned(uid, hasPersistentVolume, scope);
    }
    return true;
  }

  return {
    beginCreation: (claim, provisioner) => {
      const { uid = '' } = claim.metadata;
      if (unwritten.get(uid)?.isBusy === true) return undefined;
      const volume: UnwrittenVolume = { provisioner, isBusy: true };
      unwritten.set(uid, volume);
      return {
        markWritten: () => void unwritten.delete(uid),
        [Symbol.dispose]: () => {
          volume.isBusy = false;
          // The claim may have been deleted during the creation, when cleanup was not possible.
          for (const key of keysOf(claim)) add(key);
        },
      };
    },
    keysOf,
    isKey: (key) => key.includes(separator),
    reconcile: async (cleanupKey, scope) => {
      const [key = '', uid = ''] = cleanupKey.split(separator);
      const volume = unwritten.get(uid);
      if (volume === undefined || volume.isBusy || isUnbound(caches.claims.get(key), uid)) return done;
      volume.isBusy = true;
      try {
        if (!(await deleteAbandoned(key, uid, volume, scope))) return done;
      } finally {
        volume.isBusy = false;
      }
      unwritten.delete(uid);
      // A recreated claim may have failed because this volume had its name.
      add(key);
      return done;
    },
  };
}

/** Whether the claim still exists and has no volume yet. */
const isUnbound = (claim: PersistentVolumeClaim | undefined, uid: string): boolean =>
  claim?.metadata.uid === uid && (claim.spec.volumeName ?? '') === '';
