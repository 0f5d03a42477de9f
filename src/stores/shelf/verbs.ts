import type { Store } from '#core/ports.ts';
import { createAdopt } from './adopt.ts';
import { createCreate } from './create.ts';
import { createOrphans } from './orphans.ts';
import type { Parts } from './parts.ts';
import { createReadOnlyVerbs } from './read-only.ts';
import { createReading } from './reading.ts';
import { createSweep } from './sweep.ts';
import { createTrash } from './trash.ts';
import { createEnforce, createNoteUse, createVolumes } from './volumes.ts';

/** All that is done with volumes, the same for every store that keeps them as files. */
export function createVerbs(
  parts: Parts,
  readOnly: boolean,
): ReturnType<typeof createReadOnlyVerbs> & Pick<Store, 'room'> {
  const { place, during } = parts;
  const room: Store['room'] = (scope) => during('measuring the free space', [], scope, () => place.room(scope.signal));
  if (readOnly) return { ...createReadOnlyVerbs(parts), room };
  return {
    room,
    ...createReading(parts),
    ...createVolumes(parts),
    ...(parts.layout.canEnforce ? createEnforce(parts) : {}),
    ...(parts.layout.opaque ? createNoteUse(parts) : {}),
    ...createAdopt(parts),
    create: createCreate(parts),
    trash: createTrash(parts),
    orphans: createOrphans(parts),
    ...createSweep(parts),
    close: () => place.close(),
  };
}

/** What a store is, as its layout says. */
export const layoutTraits = ({ layout, place }: Parts) =>
  ({
    ...{ enforcesCapacity: layout.enforcesCapacity, access: layout.access, needsSize: layout.needsSize },
    ...{ name: place.store, identity: place.identity },
    ...(layout.filesystemFor === undefined ? {} : { filesystemFor: layout.filesystemFor }),
  }) satisfies Partial<Store>;
