/**
 * The keys of locks. Take the locks of a volume before the locks of its mounts: different orders would deadlock.
 */
import type { Operation, VolumeId } from './model.ts';

/** A volume name in a store, whether or not it is taken. */
export const nameKey = (store: string, name: string): string => `name ${store}/${name}`;
/** A volume by id, independent of its current name. */
export const volumeKey = (id: VolumeId): string => `volume ${id}`;
/** An adoption on a store. Taken before the locks of volumes. */
export const adoptKey = (store: string): string => `adopt ${store}`;
export const stageKey = (id: VolumeId): string => `stage ${id}`;
export const targetKey = (target: string): string => `target ${target}`;
/** An ephemeral volume, by the key of its requests. Taken before the locks of volumes. */
export const ephemeralKey = (key: string): string => `ephemeral ${key}`;
/** The engine mounts of a volume. Taken before all locks above. */
export const engineMountKey = (id: VolumeId): string => `hold ${id}`;

/**
 * The locks of a store operation, derived from its record. Excludes the former name of a volume in the trash: another volume may have it by
 * now.
 */
export function operationKeys({ kind, store = '', params }: Operation): readonly string[] {
  if (kind === 'store.adopt') return [adoptKey(store)];
  const { id, name, to } = params as Readonly<Record<string, string | undefined>>;
  const isInTrash = kind === 'trash.purge' || kind === 'volume.restore';
  const names = [isInTrash ? undefined : name, to].filter((one) => one !== undefined);
  return [...(id === undefined ? [] : [volumeKey(id as VolumeId)]), ...names.map((one) => nameKey(store, one))];
}
