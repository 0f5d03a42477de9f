import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeName } from '#core/model.ts';
import { nameTaken } from './errors.ts';
import { isDefiniteFailure } from './files.ts';
import type { HeldScope, HoldLimit } from './held-scope.ts';
import type { MetaRead } from './meta.ts';
import type { VerbContext } from './verb-context.ts';

/** Retries while other hosts take and release the name. */
const maxAttempts = 8;

/** Reserves the name against other hosts with an empty record, which the real one replaces later. Undefined: the name is taken. */
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

async function isCreated(creation: Promise<void> | undefined): Promise<boolean> {
  try {
    await creation;
    return true;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return false;
    throw cause;
  }
}

/** The limit ends when that of the name or that of the locked volume ends. */
export interface TakenName extends HoldLimit {
  /** Call it after the failure `cause`. If the server did not answer, the operation may still happen, so the name stays taken. */
  release(cause: unknown): Promise<void>;
}

/** Throws if the name is taken. An empty record whose host no longer works on it does not count. */
export async function takeName(
  ctx: VerbContext,
  name: VolumeName,
  found: MetaRead,
  scope: HeldScope,
): Promise<TakenName> {
  const { hostLocks, files, metaPath, store } = ctx.storeRoot;
  const limit = ctx.limit();
  const taken = hostLocks === undefined && found.state !== 'absent' ? undefined : await tryTakeName(ctx, name, scope);
  if (taken === undefined) throw nameTaken(name, store);
  return {
    isOver: () => limit.isOver() || scope.limit.isOver(),
    check: () => {
      limit.check();
      scope.limit.check();
    },
    release: async (cause) => {
      // Keep an empty record that we took over: it may reserve the name for a volume whose data have moved and whose record has not.
      const isOurs = hostLocks !== undefined && taken === 'made' && !limit.isOver();
      if (isOurs && isDefiniteFailure(cause)) await files.unlink(metaPath(name));
    },
  };
}
