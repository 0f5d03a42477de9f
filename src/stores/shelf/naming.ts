import type { VolumeName } from '#core/model.ts';
import { nameTaken } from './errors.ts';
import { isErrno, isRefusal } from './files.ts';
import type { MetaRead } from './meta.ts';
import type { Parts } from './parts.ts';

/** Throws unless the name is free: an empty record that nobody works on any more does not count. */
export async function freeName(parts: Parts, name: VolumeName, found: MetaRead): Promise<void> {
  if (found.state === 'absent') return;
  const { place } = parts;
  const path = place.metaPath(name);
  if (found.state !== 'torn' || place.others === undefined || !(await place.others.isAbandoned(path)))
    throw nameTaken(name, place.store);
  await place.files.unlink(path);
}

export interface Taken {
  /** Because of `cause`. Where it is no answer, what was asked for may happen yet: the name stays taken. */
  giveBack(cause: unknown): Promise<void>;
}

/** Keeps the name from other hosts, by an empty record that the real one will replace. */
export async function takeName({ place }: Parts, name: VolumeName): Promise<Taken> {
  const { others, files } = place;
  if (others === undefined) return { giveBack: async () => undefined };
  const path = place.metaPath(name);
  try {
    await others.take(path);
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) throw nameTaken(name, place.store);
    throw cause;
  }
  return {
    giveBack: async (cause) => {
      if (isRefusal(cause)) await files.unlink(path);
    },
  };
}
