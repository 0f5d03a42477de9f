import type { StoreRoot } from './store-root.ts';

/** What an earlier run of this store left half-made. The folder is ours alone, and so is all that is in it. */
export async function leftovers(storeRoot: StoreRoot): Promise<readonly string[]> {
  return (await storeRoot.files.names(storeRoot.ownPath('tmp'))).filter(storeRoot.isLeftover);
}

export async function removeLeftovers(storeRoot: StoreRoot): Promise<void> {
  for (const name of await leftovers(storeRoot)) await storeRoot.files.removeAll(storeRoot.ownPath('tmp', name));
}
