import type { Catalogue } from './catalogue.ts';
import { stowageError } from './errors.ts';
import type { StoreName, Volume } from './model.ts';
import type { Call } from './operations.ts';
import type { Stores } from './stores.ts';
import type { CreatedVolume, NewVolume, Volumes } from './volumes.ts';

/** A volume that a caller asks for again, with the same request id, when an answer was lost. */
export interface ProvisionRequest {
  /** The stores on which an earlier call may have made it. */
  readonly stores: readonly StoreName[];
  /** What to make if no earlier call made it. */
  readonly want: () => NewVolume;
  /** Throws if the volume that an earlier call made is not what the caller wants now, going by its record. */
  readonly accept?: (volume: Volume) => void;
  /** The same going by its data, which are there by then. */
  readonly acceptData?: (volume: Volume) => Promise<void>;
}

/**
 * At most one volume for a request id. Gives the one that an earlier call made, even if it was renamed, labelled or enlarged since, and
 * makes its data if a kill or a power cut left a record without them.
 */
export type Provision = (wanted: ProvisionRequest, call: Call) => Promise<CreatedVolume>;

export interface ProvisionParts {
  readonly stores: Pick<Stores, 'list'>;
  readonly catalogue: Pick<Catalogue, 'madeBy' | 'resolve'>;
  readonly volumes: Pick<Volumes, 'createWithStoreIdentity' | 'complete'>;
}

export function createProvision({ stores, catalogue, volumes }: ProvisionParts): Provision {
  /** The volume of that name, if another host made it for the same request: only its record is missing here. */
  async function madeElsewhere({ store, name }: NewVolume, call: Call): Promise<CreatedVolume | undefined> {
    const ref = store === undefined ? name : `${store}..${name}`;
    const volume = await catalogue.resolve(ref, call).catch(() => undefined);
    if (volume === undefined || volume.requestId !== call.requestId) return undefined;
    const view = stores.list().find(({ config }) => config.name === volume.store);
    return { volume, storeIdentity: view?.store?.identity };
  }

  return async ({ stores: places, want, accept, acceptData }, call) => {
    const known = catalogue.madeBy(call.requestId, places);
    if (known !== undefined) {
      accept?.(known);
      const completed = await volumes.complete(known, call);
      if (completed !== undefined) {
        await acceptData?.(completed.volume);
        return completed;
      }
    }
    const wanted = want();
    try {
      return await volumes.createWithStoreIdentity(wanted, call);
    } catch (thrown) {
      if (stowageError(thrown).code !== 'exists') throw thrown;
      const made = await madeElsewhere(wanted, call);
      if (made === undefined) throw thrown;
      accept?.(made.volume);
      await acceptData?.(made.volume);
      return made;
    }
  };
}
