import type { Volume } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { isHandle } from '#core/volume-handles.ts';
import { filesystemMismatch, type RequestedCapability, unsupportedBecause } from './capabilities.ts';
import { type DriverContext, isStoreOfDriver, topologyOf } from './driver-context.ts';
import { invalidRequest } from './request-fields.ts';

/** What CSI calls a volume id: ours, or, for volumes that were made otherwise, `store..name`. */
export async function resolveVolume(ctx: DriverContext, ref: string, call: Call): Promise<Volume> {
  if (!isHandle(ref)) throw unknownVolume(ref);
  return await ctx.core.catalogue.resolve(ref, call, isStoreOfDriver(ctx));
}

/**
 * As it is on record, if it is: whoever mounts it asks its store for it with its locks held, and each time costs a shared store
 * several calls.
 */
async function findVolumeToMount(ctx: DriverContext, ref: string, call: Call): Promise<Volume> {
  const known = isVolumeId(ref) ? ctx.core.catalogue.recorded(ref) : undefined;
  return known !== undefined && isStoreOfDriver(ctx)(known.store) ? known : await resolveVolume(ctx, ref, call);
}

/** Throws for a volume that cannot be mounted like this. */
export async function resolveMountableVolume(
  ctx: DriverContext,
  id: string,
  requested: RequestedCapability,
  call: Call,
): Promise<Volume> {
  const volume = await findVolumeToMount(ctx, id, call);
  const view = ctx.core.stores.view(volume.store);
  const wrong = unsupportedBecause([requested], ctx.driver, view);
  if (wrong !== undefined) throw invalidRequest(wrong);
  if (volume.access !== requested.access) throw invalidRequest(`the volume is a ${volume.access} volume`);
  const other = await volumeFilesystemMismatch(ctx, volume, [requested], call);
  if (other !== undefined) throw invalidRequest(other);
  return volume;
}

/** The store is asked only where somebody says which it shall be. */
export async function volumeFilesystemMismatch(
  { core }: DriverContext,
  volume: Volume,
  requestedCapabilities: readonly RequestedCapability[],
  call: Call,
): Promise<string | undefined> {
  if (requestedCapabilities.every(({ filesystem }) => filesystem === undefined)) return undefined;
  return filesystemMismatch(requestedCapabilities, await core.volumes.filesystemOf(volume, call));
}

export const volumeMessage = (ctx: DriverContext, volume: Volume) => ({
  volumeId: volume.id,
  capacityBytes: volume.bytes ?? 0n,
  volumeContext: contextOf(volume),
  accessibleTopology: ctx.driver.topology === 'node' ? [{ segments: { ...topologyOf(ctx) } }] : [],
});

export const contextOf = ({ store, name }: Volume): Record<string, string> => ({ store, name });
