import type { StoreKind } from '#core/ports.ts';
import { createLocalStoreKind } from '#stores/local/kind.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';

/** All kinds of stores, for generated files: the reference, the golden names, and the CRD. */
export const storeKinds: readonly StoreKind[] = [createLocalStoreKind(), createNfsStoreKind()];
