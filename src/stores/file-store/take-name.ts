import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeName } from '#core/model.ts';
import { nameTaken } from './errors.ts';
import { isDefiniteFailure } from './files.ts';
import type { MetaRead } from './meta.ts';
import type { HeldScope, HoldLimit, VerbContext } from './verb-context.ts';

/** How often others can take the name and give it back while we look. */
const maxAttempts = 8;

/** Keeps the name from other hosts, by an empty record that the real one will replace. Undefined: it is not free. */
export async function tryTakeName(
  ctx: VerbContext,
  name: VolumeName,
  scope: Scope,
): Promise<'made' | 'taken over' | undefined> {
  const { hostLocks, metaPath } = ctx.storeRoot;
  for (let attempt = 0; attempt < maxAttempts; attempt++) {
    const { state } = await ctx.read(name);
    if (state === 'torn' && (await ctx.takeOverTorn(name, scope))) return 'taken over';
    if (state === 'ok' || state === 'unreadable') return undefined;
    if (state === 'absent' && (await isCreated(hostLocks?.takeName(metaPath(name))))) return 'made';
  }
  return undefined;
}

async function isCreated(made: Promise<void> | undefined): Promise<boolean> {
  try {
    await made;
    return true;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return false;
    throw cause;
  }
}

/** Its limit is over with that of the name, or of the volume that is held. */
export interface TakenName extends HoldLimit {
  /** Because of `cause`. Where it is no answer, what was asked for may happen yet: the name stays taken. */
  release(cause: unknown): Promise<void>;
}

/** Throws unless the name is free: an empty record that nobody works on any more does not count. */
export async function takeName(
  ctx: VerbContext,
  name: VolumeName,
  found: MetaRead,
  scope: HeldScope,
): Promise<TakenName> {
  const { hostLocks, files, metaPath, store } = ctx.storeRoot;
  const limit = ctx.limit();
  const how = hostLocks === undefined && found.state !== 'absent' ? undefined : await tryTakeName(ctx, name, scope);
  if (how === undefined) throw nameTaken(name, store);
  return {
    isOver: () => limit.isOver() || scope.limit.isOver(),
    check: () => {
      limit.check();
      scope.limit.check();
    },
    release: async (cause) => {
      // One that was there before may keep the name for a volume whose record has yet to follow its data.
      const isOurs = hostLocks !== undefined && how === 'made' && !limit.isOver();
      if (isOurs && isDefiniteFailure(cause)) await files.unlink(metaPath(name));
    },
  };
}
