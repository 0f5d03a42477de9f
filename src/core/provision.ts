import type { Catalogue } from './catalogue.ts';
import { stowageError } from './errors.ts';
import type { StoreName, Volume } from './model.ts';
import type { Call } from './operations.ts';
import type { Stores } from './stores.ts';
import type { CreatedVolume, NewVolume, Volumes } from './volumes.ts';

/** A request for a volume. The caller repeats it with the same request id if an answer was lost. */
export interface ProvisionRequest {
  /** The stores on which an earlier call may have created the volume. */
  readonly stores: readonly StoreName[];
  /** The volume to create if no earlier call created it. */
  readonly want: () => NewVolume;
  /** Throws if the record of the existing volume does not match the request. */
  readonly accept?: (volume: Volume) => void;
  /** Throws if the data of the existing volume does not match the request. Called once the data exists. */
  readonly acceptData?: (volume: Volume) => Promise<void>;
}

/**
 * Creates at most one volume per request id. Returns the volume of an earlier call, even if it was renamed, labelled or enlarged since, and
 * recreates its data if a kill or a power cut left a record without data.
 */
export type Provision = (wanted: ProvisionRequest, call: Call) => Promise<CreatedVolume>;

export interface ProvisionParts {
  readonly stores: Pick<Stores, 'list'>;
  readonly catalogue: Pick<Catalogue, 'createdByRequest' | 'resolve'>;
  readonly volumes: Pick<Volumes, 'createWithStoreIdentity' | 'complete'>;
}

export function createProvision({ stores, catalogue, volumes }: ProvisionParts): Provision {
  /** The volume with this name, if another host created it for the same request and only our record is missing. */
  async function findCreatedByOtherHost({ store, name }: NewVolume, call: Call): Promise<CreatedVolume | undefined> {
    const ref = store === undefined ? name : `${store}..${name}`;
    const volume = await catalogue.resolve(ref, call).catch(() => undefined);
    if (volume === undefined || volume.requestId !== call.requestId) return undefined;
    const view = stores.list().find(({ config }) => config.name === volume.store);
    return { volume, storeIdentity: view?.store?.identity };
  }

  return async ({ stores: candidateStores, want, accept, acceptData }, call) => {
    const recordedVolume = catalogue.createdByRequest(call.requestId, candidateStores);
    if (recordedVolume !== undefined) {
      accept?.(recordedVolume);
      const completed = await volumes.complete(recordedVolume, call);
      if (completed !== undefined) {
        await acceptData?.(completed.volume);
        return completed;
      }
    }
    const newVolume = want();
    try {
      return await volumes.createWithStoreIdentity(newVolume, call);
    } catch (thrown) {
      if (stowageError(thrown).code !== 'exists') throw thrown;
      const existing = await findCreatedByOtherHost(newVolume, call);
      if (existing === undefined) throw thrown;
      accept?.(existing.volume);
      await acceptData?.(existing.volume);
      return existing;
    }
  };
}
