import type { StoreKind } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';

/** Each kind of store, for what is generated from their options: the reference, the golden names, the Store resource of Kubernetes. */
export const storeKinds: readonly StoreKind[] = [createLocalStoreKind(), createNfsStoreKind()];
