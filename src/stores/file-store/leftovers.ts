import type { StoreRoot } from './store-root.ts';

/** What an earlier run of this store left half-made. The folder is ours alone, and so is all that is in it. */
export async function leftovers(place: StoreRoot): Promise<readonly string[]> {
  return (await place.files.names(place.own('tmp'))).filter(place.isLeftover);
}

export async function removeLeftovers(place: StoreRoot): Promise<void> {
  for (const name of await leftovers(place)) await place.files.removeAll(place.own('tmp', name));
}
