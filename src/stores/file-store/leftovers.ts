import type { StoreRoot } from './store-root.ts';

/** Unfinished files of an earlier run. Only Stowage uses this folder, so all of them may be removed. */
export async function listLeftovers(storeRoot: StoreRoot): Promise<readonly string[]> {
  return (await storeRoot.files.names(storeRoot.ownPath('tmp'))).filter(storeRoot.isLeftover);
}

export async function removeLeftovers(storeRoot: StoreRoot): Promise<void> {
  for (const name of await listLeftovers(storeRoot)) await storeRoot.files.removeAll(storeRoot.ownPath('tmp', name));
}
