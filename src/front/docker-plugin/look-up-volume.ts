import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreName, Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { notAnswering as storeNotAnswering } from '#core/store-errors.ts';

export interface LookedUpVolume {
  readonly volume: Volume;
  /** The store's server does not answer, so `volume` is the last known record. */
  readonly isSilent: boolean;
  /** The deletion is still in progress and may fail. */
  readonly isBeingDeleted?: boolean;
}

/**
 * Resolves an engine's volume name. If the store is known, pings its server first: an unreachable server then costs two seconds. A lookup of
 * the volume would take longer than Podman waits. If the volume is being deleted, waits for the end of the deletion, at most
 * `deletionWaitMs` if given.
 */
export async function lookUpVolume(
  core: Core,
  plugin: PluginName,
  name: string,
  call: Call,
  deletionWaitMs?: number,
): Promise<LookedUpVolume> {
  const id = core.pluginNames.recordedId(plugin, name);
  const store = id && core.catalogue.findRecorded(id)?.store;
  const wasSilent = store !== undefined && (await isSilent(core, store, call));
  const volume = await core.pluginNames.resolve(plugin, name, call);
  const noted = await core.engineRequests.note(volume.id, call.signal, deletionWaitMs);
  if (noted === 'over') return await lookUpVolume(core, plugin, name, call, deletionWaitMs);
  if (noted === 'deleting') return { volume, isSilent: wasSilent, isBeingDeleted: true };
  return { volume, isSilent: volume.store === store ? wasSilent : await isSilent(core, volume.store, call) };
}

/** Pings the store's server, if it has one. A user at a terminal should not wait for the store's own timeout. */
export async function isSilent(core: Core, store: StoreName, call: Call): Promise<boolean> {
  // The store may have been removed from the configuration after the volume was recorded.
  if (!core.stores.list().some(({ config }) => config.name === store)) return false;
  return (await core.liveness.findSilent([store], call)).has(store);
}

export function storeNotAnsweringError(core: Core, store: StoreName): StowageError {
  const refusal = core.liveness.denialOf(store);
  if (refusal !== undefined) return storeNotAnswering(store, refusal);
  return new StowageError(
    `the server of store '${store}' does not answer: a network or server failure, not missing permissions`,
    {
      code: 'unavailable',
      reason: 'store-not-answering',
      action: `Try again later. The administrator can find the cause with: stowage store check ${store}`,
    },
  );
}
