import type { Volume } from './model.ts';
import { isVolumeId, partsOfQualified, qualified } from './names.ts';

/**
 * What PersistentVolumes call a volume: its id, in those that a provisioner makes; `store..name`, in those that people write. Compare
 * handles with volumes by these. They follow from the volume, and not the volume from them: only a node knows which volume a name means
 * on a store of its own.
 */
export const handlesOf = ({ id, store, name }: Pick<Volume, 'id' | 'store' | 'name'>): readonly string[] => [
  id,
  qualified(store, name),
];

/** A bare name is none: what it means depends on the stores that are configured. */
export const isHandle = (text: string): boolean => isVolumeId(text) || partsOfQualified(text) !== undefined;
