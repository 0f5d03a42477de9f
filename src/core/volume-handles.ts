import type { Volume } from './model.ts';
import { isVolumeId, partsOfQualified, qualified } from './names.ts';

/**
 * The volume handles that PersistentVolumes use for a volume: its id (written by a provisioner) or `store..name` (written by people). To
 * compare handles with volumes, derive the handles from the volume, not the other way round: only a node knows which volume a name refers to
 * on a store of its own.
 */
export const handlesOf = ({ id, store, name }: Pick<Volume, 'id' | 'store' | 'name'>): readonly string[] => [
  id,
  qualified(store, name),
];

/** A bare name is not a handle, since its meaning depends on the configured stores. */
export const isHandle = (text: string): boolean => isVolumeId(text) || partsOfQualified(text) !== undefined;
