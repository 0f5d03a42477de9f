import type { Scope } from '#base/log.ts';
import { claims, persistentVolumes } from '#wire/kube/resources.ts';
import type { PersistentVolumeClaim } from '#wire/kube/types.ts';
import { type ControllerParts, ignoreNotFound } from './controller-parts.ts';
import { createHasPersistentVolume } from './handles.ts';
import { keyOf } from './machinery/cache.ts';
import { type Done, done } from './machinery/outcome.ts';
import { volumeNameFor } from './names.ts';
import type { Provisioner } from './provisioner.ts';

/** A volume that is being made; disposed of when that is over, however it went. */
export interface VolumeCreation extends Disposable {
  /** Its PersistentVolume is there: what becomes of it is for others to see. */
  written(): void;
}

/**
 * What was begun for claims that are gone by now, or have another volume. It is known by their UIDs, and is work of its own, with keys of
 * its own: whoever has deleted a claim and made it anew does not wait for what was of the first, and is not told of it. What
 * another leader began is found by those who look for volumes that nobody claims.
 */
export interface AbandonedClaims {
  /** From now on something may be there. Undefined: what was there is being taken back at this moment. */
  begin(claim: PersistentVolumeClaim, provisioner: Provisioner): VolumeCreation | undefined;
  /** What there is to take back when this changes. */
  keysOf(claim: PersistentVolumeClaim): readonly string[];
  isKey(key: string): boolean;
  reconcile(key: string, scope: Scope): Promise<Done>;
}

/** Of a claim whose PersistentVolume is not known to be written. */
interface UnwrittenVolume {
  readonly provisioner: Provisioner;
  /** It is made or taken back: never both at a time. */
  isBusy: boolean;
}

/** No name of Kubernetes has it. */
const separator = '#';

/** `add` is called with keys to look at: its own, and those of claims that may have waited for a name. */
export function createAbandonedClaims(
  { client, caches }: Pick<ControllerParts, 'client' | 'caches'>,
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

  /** What the cache says of a claim is not enough to destroy something for. Gives whether it is over. */
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
    begin: (claim, provisioner) => {
      const { uid = '' } = claim.metadata;
      if (unwritten.get(uid)?.isBusy === true) return undefined;
      const mine: UnwrittenVolume = { provisioner, isBusy: true };
      unwritten.set(uid, mine);
      return {
        written: () => void unwritten.delete(uid),
        [Symbol.dispose]: () => {
          mine.isBusy = false;
          // It went while it was made, and then nobody could take it back.
          for (const key of keysOf(claim)) add(key);
        },
      };
    },
    keysOf,
    isKey: (key) => key.includes(separator),
    reconcile: async (own, scope) => {
      const [key = '', uid = ''] = own.split(separator);
      const mine = unwritten.get(uid);
      if (mine === undefined || mine.isBusy || isUnbound(caches.claims.get(key), uid)) return done;
      mine.isBusy = true;
      try {
        if (!(await deleteAbandoned(key, uid, mine, scope))) return done;
      } finally {
        mine.isBusy = false;
      }
      unwritten.delete(uid);
      // One that was made anew may have been refused for the name of this volume.
      add(key);
      return done;
    },
  };
}

/** It is the same claim, and has no volume yet. */
const isUnbound = (claim: PersistentVolumeClaim | undefined, uid: string): boolean =>
  claim?.metadata.uid === uid && (claim.spec.volumeName ?? '') === '';
