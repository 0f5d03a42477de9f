import { provisionedBy } from '#controllers/names.ts';
import type { StoreObject } from '#controllers/store-object.ts';
import type { PersistentVolume, StorageClass } from '#wire/kube/types.ts';

/** What its provisioner, which is written in Go, takes for a no. */
const no = new Set(['0', 'f', 'F', 'false', 'False', 'FALSE']);

/**
 * Whether whoever made it would have destroyed the data with it: `Delete` also means to them that a directory is kept, under another
 * name or its own. False: they would not, or nobody knows. `storageClass`: the one that it names, as it is now.
 */
export function wasDestroyed(volume: PersistentVolume, storageClass: StorageClass | undefined): boolean {
  const { nfs } = volume.spec;
  const by = volume.metadata.annotations?.[provisionedBy];
  // Of csi-driver-nfs nobody knows: what it does where nothing else is said, `--default-ondelete-policy`, is among its arguments alone.
  // Meanwhile the name may be that of another's class.
  if (nfs === undefined || by === undefined || by !== storageClass?.provisioner) return false;
  const { onDelete = '', archiveOnDelete = '' } = storageClass.parameters ?? {};
  return onDelete === 'delete' || (onDelete === '' && no.has(archiveOnDelete));
}

/** Of a store, wherever it is said; what stands beside the uri is said last. */
export function optionOf({ spec: { uri, options } }: StoreObject, key: string): string | undefined {
  const inUri = URL.canParse(uri) ? new URL(uri).searchParams.getAll(key).at(-1) : undefined;
  return options?.[key] ?? inUri;
}

/** Whether deleting a volume of it leaves the data somewhere. */
export const keepsDeleted = (store: StoreObject): boolean =>
  ['archive', 'retain'].includes(optionOf(store, 'onDelete') ?? '');
