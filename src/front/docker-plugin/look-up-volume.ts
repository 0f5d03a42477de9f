import type { PluginName } from '#core/containers.ts';
import type { Core } from '#core/core.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreName, Volume } from '#core/model.ts';
import type { Call } from '#core/operations.ts';
import { notAnswering as storeNotAnswering } from '#core/store-errors.ts';

export interface LookedUpVolume {
  readonly volume: Volume;
  /** Its server does not answer: what is said of the volume is as it was. */
  readonly isSilent: boolean;
  /** It takes its time, and may yet fail. */
  readonly isBeingDeleted?: boolean;
}

/**
 * What an engine's name means. Where its store is known, its server is asked first whether it is there: one that is silent
 * takes two seconds that way, and more than Podman waits if it were asked for the volume at once. Of one that is being deleted it
 * is known only then whether it is there: that is waited for, with patience where there is a limit to it.
 */
export async function lookUpVolume(
  core: Core,
  plugin: PluginName,
  name: string,
  call: Call,
  deletionWaitMs?: number,
): Promise<LookedUpVolume> {
  const id = core.pluginNames.known(plugin, name);
  const store = id && core.catalogue.recorded(id)?.store;
  const wasSilent = store !== undefined && (await isSilent(core, store, call));
  const volume = await core.pluginNames.resolve(plugin, name, call);
  const noted = await core.engineRequests.note(volume.id, call.signal, deletionWaitMs);
  if (noted === 'over') return await lookUpVolume(core, plugin, name, call, deletionWaitMs);
  if (noted === 'deleting') return { volume, isSilent: wasSilent, isBeingDeleted: true };
  return { volume, isSilent: volume.store === store ? wasSilent : await isSilent(core, volume.store, call) };
}

/** One call of the server's, where there is one. Whoever types a command should not wait for as long as a store is patient. */
export async function isSilent(core: Core, store: StoreName, call: Call): Promise<boolean> {
  // One that was configured when the volume was recorded may be gone.
  if (!core.stores.list().some(({ config }) => config.name === store)) return false;
  return (await core.liveness.silent([store], call)).has(store);
}

export function storeNotAnsweringError(core: Core, store: StoreName): StowageError {
  const refusal = core.liveness.refusal(store);
  if (refusal !== undefined) return storeNotAnswering(store, refusal);
  return new StowageError(
    `the server of store '${store}' does not answer: a network or server failure, not missing permissions`,
    {
      code: 'unavailable',
      reason: 'store-not-answering',
      action: `Try again when it does. What holds it up is for the administrator to find out: stowage store check ${store}`,
    },
  );
}
