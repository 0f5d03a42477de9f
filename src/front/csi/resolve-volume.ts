import type { Volume } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { unknownVolume } from '#core/volume-errors.ts';
import { isHandle } from '#core/volume-handles.ts';
import { filesystemMismatch, type RequestedCapability, unsupportedBecause } from './capabilities.ts';
import { type DriverContext, isStoreOfDriver, topologyOf } from './driver-context.ts';
import { invalidRequest } from './request-fields.ts';

/** A CSI volume id is a Stowage volume id, or `store..name` for volumes that were not created by CSI. */
export async function resolveVolume(ctx: DriverContext, ref: string, call: Call): Promise<Volume> {
  if (!isHandle(ref)) throw unknownVolume(ref);
  return await ctx.core.catalogue.resolve(ref, call, isStoreOfDriver(ctx));
}

/** Prefers the record: mounting asks the store anyway, with the locks held, and each lookup costs several calls to a shared store. */
async function findVolumeToMount(ctx: DriverContext, ref: string, call: Call): Promise<Volume> {
  const known = isVolumeId(ref) ? ctx.core.catalogue.findRecorded(ref) : undefined;
  return known !== undefined && isStoreOfDriver(ctx)(known.store) ? known : await resolveVolume(ctx, ref, call);
}

/** Throws if the volume can't be mounted with the requested capability. */
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

/** Asks the store only if the request names a file system. */
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
