import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeName } from '#core/model.ts';
import { nameTaken } from './errors.ts';
import { isRefusal } from './files.ts';
import type { MetaRead } from './meta.ts';
import type { HeldScope, Limit, Parts } from './verb-context.ts';

/** How often others can take the name and give it back while we look. */
const mostAttempts = 8;

/** Keeps the name from other hosts, by an empty record that the real one will replace. Undefined: it is not free. */
export async function tryTake(
  parts: Parts,
  name: VolumeName,
  scope: Scope,
): Promise<'made' | 'taken over' | undefined> {
  const { others, metaPath } = parts.storeRoot;
  for (let attempt = 0; attempt < mostAttempts; attempt++) {
    const { state } = await parts.read(name);
    if (state === 'torn' && (await parts.takeTorn(name, scope))) return 'taken over';
    if (state === 'ok' || state === 'unreadable') return undefined;
    if (state === 'absent' && (await isMade(others?.take(metaPath(name))))) return 'made';
  }
  return undefined;
}

async function isMade(made: Promise<void> | undefined): Promise<boolean> {
  try {
    await made;
    return true;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return false;
    throw cause;
  }
}

/** Its limit is over with that of the name, or of the volume that is held. */
export interface Taken extends Limit {
  /** Because of `cause`. Where it is no answer, what was asked for may happen yet: the name stays taken. */
  giveBack(cause: unknown): Promise<void>;
}

/** Throws unless the name is free: an empty record that nobody works on any more does not count. */
export async function takeName(parts: Parts, name: VolumeName, found: MetaRead, scope: HeldScope): Promise<Taken> {
  const { others, files, metaPath, store } = parts.storeRoot;
  const limit = parts.limit();
  const how = others === undefined && found.state !== 'absent' ? undefined : await tryTake(parts, name, scope);
  if (how === undefined) throw nameTaken(name, store);
  return {
    isOver: () => limit.isOver() || scope.limit.isOver(),
    check: () => {
      limit.check();
      scope.limit.check();
    },
    giveBack: async (cause) => {
      // One that was there before may keep the name for a volume whose record has yet to follow its data.
      const isOurs = others !== undefined && how === 'made' && !limit.isOver();
      if (isOurs && isRefusal(cause)) await files.unlink(metaPath(name));
    },
  };
}
