import type { Volume } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { isHandle } from '#core/volume-handles.ts';
import { cannotHave, otherFilesystem, type Wish } from './capabilities.ts';
import { type About, isVisible, topologyOf } from './driver-context.ts';
import { refuse } from './request-fields.ts';

/** What CSI calls a volume id: ours, or, for volumes that were made otherwise, `store..name`. */
export async function volumeOf(about: About, ref: string, call: Call): Promise<Volume> {
  if (!isHandle(ref)) throw unknownVolume(ref);
  return await about.core.catalogue.resolve(ref, call, isVisible(about));
}

/**
 * As it is on record, if it is: whoever mounts it asks its store for it with its locks held, and each time costs a shared store
 * several calls.
 */
async function volumeToMount(about: About, ref: string, call: Call): Promise<Volume> {
  const known = isVolumeId(ref) ? about.core.catalogue.recorded(ref) : undefined;
  return known !== undefined && isVisible(about)(known.store) ? known : await volumeOf(about, ref, call);
}

/** Throws for a volume that cannot be mounted like this. */
export async function fittingVolume(about: About, id: string, wish: Wish, call: Call): Promise<Volume> {
  const volume = await volumeToMount(about, id, call);
  const view = about.core.stores.view(volume.store);
  const wrong = cannotHave([wish], about.driver, view);
  if (wrong !== undefined) throw refuse(wrong);
  if (volume.access !== wish.access) throw refuse(`the volume is a ${volume.access} volume`);
  const other = await otherFilesystemOf(about, volume, [wish], call);
  if (other !== undefined) throw refuse(other);
  return volume;
}

/** The store is asked only where somebody says which it shall be. */
export async function otherFilesystemOf(
  { core }: About,
  volume: Volume,
  wishes: readonly Wish[],
  call: Call,
): Promise<string | undefined> {
  if (wishes.every(({ filesystem }) => filesystem === undefined)) return undefined;
  return otherFilesystem(wishes, await core.volumes.filesystemOf(volume, call));
}

export const volumeMessage = (about: About, volume: Volume) => ({
  volumeId: volume.id,
  capacityBytes: volume.bytes ?? 0n,
  volumeContext: contextOf(volume),
  accessibleTopology: about.driver.topology === 'node' ? [{ segments: { ...topologyOf(about) } }] : [],
});

export const contextOf = ({ store, name }: Volume): Record<string, string> => ({ store, name });
