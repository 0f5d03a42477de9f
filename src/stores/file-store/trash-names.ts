import type { VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';

/** The volume of an entry that a purge has moved to `trash/<id>.<random>`. Undefined: `name` is not such an entry. */
export function stagedId(name: string): VolumeId | undefined {
  const [id = '', random = '', ...more] = name.split('.');
  return isVolumeId(id) && /^[0-9a-f]{12}$/.test(random) && more.length === 0 ? id : undefined;
}

/** The volume of any entry in `trash/`. */
export const trashedId = (name: string): VolumeId | undefined => (isVolumeId(name) ? name : stagedId(name));
