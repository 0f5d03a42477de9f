import { StowageError } from '#core/errors.ts';
import type { Volume } from '#core/model.ts';
import { isVolumeId, partsOfQualified, quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { cannotHave, type Wish } from './capabilities.ts';
import { type About, isVisible, topologyOf } from './driver.ts';
import { refuse } from './requests.ts';

/** What CSI calls a volume id: ours, or, for volumes that were made otherwise, `store..name`. */
export async function volumeOf(about: About, ref: string, call: Call): Promise<Volume> {
  if (!isVolumeId(ref) && partsOfQualified(ref) === undefined) throw unknown(ref);
  return await about.engine.catalogue.resolve(ref, call, isVisible(about));
}

/** Throws for a volume that cannot be had like this. */
export async function fittingVolume(about: About, id: string, wish: Wish, call: Call): Promise<Volume> {
  const volume = await volumeOf(about, id, call);
  const view = about.engine.stores.view(volume.store);
  const wrong = cannotHave([wish], about.kind, view);
  if (wrong !== undefined) throw refuse(wrong);
  if (volume.access !== wish.access) throw refuse(`the volume is a ${volume.access} volume`);
  return volume;
}

export function unknown(ref: string): StowageError {
  return new StowageError(`there is no volume ${quoted(ref)}`, {
    code: 'not-found',
    reason: 'volume-unknown',
    action: 'See what there is: stowage volume list',
  });
}

export const volumeMessage = (about: About, volume: Volume) => ({
  volumeId: volume.id,
  capacityBytes: volume.bytes ?? 0n,
  volumeContext: contextOf(volume),
  accessibleTopology: about.kind === 'local' ? [{ segments: { ...topologyOf(about) } }] : [],
});

export const contextOf = ({ store, name }: Volume): Record<string, string> => ({ store, name });
