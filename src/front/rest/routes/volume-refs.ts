import { Type } from 'typebox';
import type { Scope } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import type { Volume } from '#core/model.ts';
import { partsOfQualified } from '#core/names.ts';
import { enforcesSizes } from '#core/store-view.ts';
import { volumeJson } from '../json.ts';
import { maySee, type Principal, requireStore } from '../principal.ts';
import type { VolumeJson } from '../schemas.ts';

export const params = Type.Object(
  { volume: Type.String({ minLength: 1, maxLength: 300, description: 'A volume id, store..name, or a name' }) },
  { additionalProperties: false },
);

export const storeEnforcesSize = (core: Core, store: string): boolean => enforcesSizes(core.stores.view(store));
export const volumeToJson = (core: Core, volume: Volume): VolumeJson =>
  volumeJson(volume, storeEnforcesSize(core, volume.store));

/** Resolves a volume among the stores that the principal may see. */
export async function resolvePermitted(core: Core, principal: Principal, ref: string, call: Scope): Promise<Volume> {
  const store = partsOfQualified(ref)?.store;
  if (store !== undefined) requireStore(principal, store);
  return await core.catalogue.resolve(ref, call, (one) => maySee(principal, one));
}
