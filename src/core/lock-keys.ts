/**
 * What locks are named by. Whoever needs several takes those of a volume first and those of its mounts after: two
 * orders would wait for each other.
 */
import type { Operation, VolumeId } from './model.ts';

/** A name in a store, whether or not a volume has it. */
export const nameKey = (store: string, name: string): string => `name ${store}/${name}`;
/** A volume, whatever it is called by now. */
export const volumeKey = (id: VolumeId): string => `volume ${id}`;
/** Volumes of a store that are being adopted; taken before those of the volumes. */
export const adoptKey = (store: string): string => `adopt ${store}`;
export const stageKey = (id: VolumeId): string => `stage ${id}`;
export const targetKey = (target: string): string => `target ${target}`;
/** What container engines have asked for of a volume; taken before all of the above. */
export const engineMountKey = (id: VolumeId): string => `hold ${id}`;

/**
 * What an operation on a store has locked, by its record. The name that a volume in the trash once had is not among it: another volume may
 * have it by now.
 */
export function operationKeys({ kind, store = '', params }: Operation): readonly string[] {
  if (kind === 'store.adopt') return [adoptKey(store)];
  const { id, name, to } = params as Readonly<Record<string, string | undefined>>;
  const isInTrash = kind === 'trash.purge' || kind === 'volume.restore';
  const names = [isInTrash ? undefined : name, to].filter((one) => one !== undefined);
  return [...(id === undefined ? [] : [volumeKey(id as VolumeId)]), ...names.map((one) => nameKey(store, one))];
}
