import { provisionedByAnnotation } from '#controllers/names.ts';
import type { StoreObject } from '#controllers/store-object.ts';
import type { PersistentVolume, StorageClass } from '#wire/kube/types.ts';

/** What the provisioner's strconv.ParseBool (Go) parses as false. */
const falseWords = new Set(['0', 'f', 'F', 'false', 'False', 'FALSE']);

/**
 * Whether the previous provisioner would have destroyed the data on deletion: with `Delete` it may also keep the directory, under its own or
 * another name. False: it would not, or this is not known. `storageClass`: the volume's class as it is now.
 */
export function deletesData(volume: PersistentVolume, storageClass: StorageClass | undefined): boolean {
  const { nfs } = volume.spec;
  const by = volume.metadata.annotations?.[provisionedByAnnotation];
  // For csi-driver-nfs this is not known: its default, `--default-ondelete-policy`, is only among its arguments. By now another
  // provisioner's class may have the name.
  if (nfs === undefined || by === undefined || by !== storageClass?.provisioner) return false;
  const { onDelete = '', archiveOnDelete = '' } = storageClass.parameters ?? {};
  return onDelete === 'delete' || (onDelete === '' && falseWords.has(archiveOnDelete));
}

/** The value of a store's option. The field `options` overrides the URI. */
export function optionOf({ spec: { uri, options } }: StoreObject, key: string): string | undefined {
  const inUri = URL.canParse(uri) ? new URL(uri).searchParams.getAll(key).at(-1) : undefined;
  return options?.[key] ?? inUri;
}

/** Whether the data stay somewhere when a volume of the store is deleted. */
export const keepsDeleted = (store: StoreObject): boolean =>
  ['archive', 'retain'].includes(optionOf(store, 'onDelete') ?? '');
