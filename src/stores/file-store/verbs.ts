import type { Housekeeping, Store, StoreKind } from '#core/ports.ts';
import { createAdopt } from './adopt.ts';
import { createChangeVerbs, createEnforce, createNoteUse, createRelease } from './change-verbs.ts';
import { createCreate } from './create.ts';
import { createOrphans } from './orphans.ts';
import { createReadOnlyVerbs } from './read-only-verbs.ts';
import { createReadVerbs } from './read-verbs.ts';
import { createSweep } from './sweep.ts';
import { createTrash } from './trash.ts';
import type { VerbContext } from './verb-context.ts';

type Facets = 'names' | 'expand' | 'rename' | 'usage' | 'room' | 'trash' | 'adoption';

/** A store that keeps volumes as files. These facets do not depend on its options or its layout. */
export type FileStore = Store & Required<Pick<Store, Facets>> & { readonly housekeeping: Required<Housekeeping> };

export interface FileStoreKind extends StoreKind {
  open(...opening: Parameters<StoreKind['open']>): Promise<FileStore>;
}

/** The verbs, which are the same for every store that keeps volumes as files. */
export function createVerbs(
  ctx: VerbContext,
  readOnly: boolean,
): ReturnType<typeof createReadOnlyVerbs> & Pick<FileStore, 'room'> {
  const { storeRoot, runVerb } = ctx;
  const room: FileStore['room'] = (scope) =>
    runVerb('measuring the free space', [], scope, () => storeRoot.room(scope.signal));
  const enforcement = enforcementOf(ctx, readOnly);
  if (readOnly) return { ...createReadOnlyVerbs(ctx), ...enforcement, room };
  return {
    room,
    ...createReadVerbs(ctx),
    ...createChangeVerbs(ctx),
    ...enforcement,
    ...(ctx.layout.opaque ? createNoteUse(ctx) : {}),
    create: createCreate(ctx),
    trash: createTrash(ctx),
    adoption: { ...createAdopt(ctx), ...createRelease(ctx) },
    housekeeping: { ...createSweep(ctx), orphans: createOrphans(ctx) },
    close: () => storeRoot.close(),
  };
}

function enforcementOf(ctx: VerbContext, readOnly: boolean): Pick<Store, 'enforcement'> {
  const { enforcesCapacity, canEnforce } = ctx.layout;
  if (canEnforce && !readOnly) return { enforcement: { always: enforcesCapacity, ...createEnforce(ctx) } };
  return enforcesCapacity ? { enforcement: { always: enforcesCapacity } } : {};
}

/** The properties of a store that follow from its layout. */
export const layoutTraits = ({ layout, storeRoot }: VerbContext) =>
  ({
    name: storeRoot.store,
    identity: storeRoot.identity,
    access: layout.access,
    ...(layout.filesystemFor === undefined ? {} : { filesystemFor: layout.filesystemFor }),
  }) satisfies Partial<Store>;
