import { formatSize } from '#base/size.ts';
import type { Core } from '#core/core.ts';
import { redactForUser } from '#core/error-disclosure.ts';
import type { Volume } from '#core/model.ts';
import { isShared } from '#core/placement.ts';
import { notAnswering } from '#core/store-errors.ts';
import { enforcesSizes, type StoreView } from '#core/store-view.ts';
import { oneLine } from './error-response.ts';
import type { LookedUpVolume } from './look-up-volume.ts';
import type { UsedBytes } from './used-bytes.ts';

/** A volume in the plugin protocol. */
export interface VolumeJson {
  readonly Name: string;
  /** Empty: not mounted for engines. */
  readonly Mountpoint: string;
  readonly CreatedAt: string;
  readonly Status?: Readonly<Record<string, unknown>>;
}

export const volumeJson = (core: Core, name: string, volume: Volume): VolumeJson => ({
  Name: name,
  Mountpoint: core.engineMounts.pathOf(volume.id) ?? '',
  // RFC 3339: Docker rejects the whole answer if the time has another format.
  CreatedAt: new Date(volume.createdAt).toISOString(),
});

/** What `docker volume inspect` shows below Status. Each `docker run` requests it too, about three times, so it must be fast. */
export async function statusOf(
  core: Core,
  { volume, isSilent, isBeingDeleted = false }: LookedUpVolume,
  used: UsedBytes,
): Promise<Readonly<Record<string, unknown>>> {
  const view = core.stores.view(volume.store);
  const bytes = isSilent || isBeingDeleted || view.store === undefined ? undefined : await used.usedBytesOf(volume);
  return {
    store: volume.store,
    volume: volume.name,
    id: volume.id,
    size: volume.bytes === undefined ? 'none' : formatSize(volume.bytes),
    ...(bytes === undefined ? {} : { used: formatSize(bytes) }),
    enforce: volume.enforce || enforcesSizes(view),
    health: isBeingDeleted ? 'the volume is being deleted' : healthOf(core, view, isSilent),
    client: view.clientName,
    network: view.config.options['network'] ?? (isShared(view.placement) ? 'host' : 'none'),
    access: volume.access,
    labels: volume.labels,
  };
}

function healthOf({ liveness }: Core, { config, store, problem }: StoreView, isSilent: boolean): string {
  const refusal = liveness.denialOf(config.name);
  if (isSilent || (store !== undefined && refusal !== undefined)) return notAnswering(config.name, refusal).message;
  if (store !== undefined) return 'ok';
  if (problem === undefined) return `store '${config.name}' is not open yet`;
  const { message, action } = redactForUser(problem, `with: stowage store check ${config.name}`);
  return oneLine(message, action);
}
