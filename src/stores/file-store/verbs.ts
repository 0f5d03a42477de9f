import type { Housekeeping, Store, StoreKind } from '#core/ports.ts';
import { createAdopt } from './adopt.ts';
import { createEnforce, createNoteUse, createRelease, createVolumes } from './change-verbs.ts';
import { createCreate } from './create.ts';
import { createOrphans } from './orphans.ts';
import { createReadOnlyVerbs } from './read-only-verbs.ts';
import { createReading } from './read-verbs.ts';
import { createSweep } from './sweep.ts';
import { createTrash } from './trash.ts';
import type { Parts } from './verb-context.ts';

type Facets = 'names' | 'expand' | 'rename' | 'usage' | 'room' | 'trash' | 'adoption';

/** A store that keeps volumes as files. These facets do not depend on its options or its layout. */
export type FileStore = Store & Required<Pick<Store, Facets>> & { readonly housekeeping: Required<Housekeeping> };

export interface FileStoreKind extends StoreKind {
  open(...opening: Parameters<StoreKind['open']>): Promise<FileStore>;
}

/** All that is done with volumes, the same for every store that keeps them as files. */
export function createVerbs(
  parts: Parts,
  readOnly: boolean,
): ReturnType<typeof createReadOnlyVerbs> & Pick<FileStore, 'room'> {
  const { storeRoot, during } = parts;
  const room: FileStore['room'] = (scope) =>
    during('measuring the free space', [], scope, () => storeRoot.room(scope.signal));
  const enforcement = enforcementOf(parts, readOnly);
  if (readOnly) return { ...createReadOnlyVerbs(parts), ...enforcement, room };
  return {
    room,
    ...createReading(parts),
    ...createVolumes(parts),
    ...enforcement,
    ...(parts.layout.opaque ? createNoteUse(parts) : {}),
    create: createCreate(parts),
    trash: createTrash(parts),
    adoption: { ...createAdopt(parts), ...createRelease(parts) },
    housekeeping: { ...createSweep(parts), orphans: createOrphans(parts) },
    close: () => storeRoot.close(),
  };
}

function enforcementOf(parts: Parts, readOnly: boolean): Pick<Store, 'enforcement'> {
  const { enforcesCapacity: always, canEnforce } = parts.layout;
  if (canEnforce && !readOnly) return { enforcement: { always, ...createEnforce(parts) } };
  return always ? { enforcement: { always } } : {};
}

/** What a store is, as its layout says. */
export const layoutTraits = ({ layout, storeRoot }: Parts) =>
  ({
    name: storeRoot.store,
    identity: storeRoot.identity,
    access: layout.access,
    ...(layout.filesystemFor === undefined ? {} : { filesystemFor: layout.filesystemFor }),
  }) satisfies Partial<Store>;
