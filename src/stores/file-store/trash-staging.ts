import { randomBytes } from 'node:crypto';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId } from '#core/model.ts';
import { ignoreBusy } from './finish-interrupted.ts';
import type { HeldScope } from './held-scope.ts';
import { encodeMeta, type Meta, type MetaRead, readMeta } from './meta.ts';
import { stagedId } from './trash-names.ts';
import type { VerbContext } from './verb-context.ts';

// A purge moves its entry twice: from `trash/<id>` to `trash/<id>.<random>`, where it reads the record again, and from there to
// `deleting/`. A host that was suspended right before the first move may have lost its lock. The entry at `trash/<id>` may then belong
// to a later deletion of the same volume. The record shows that, and the host moves the entry back. Each purge uses a random name of its
// own, so the second move cannot take another entry. Older versions list and purge ids only.

const isSame = (found: MetaRead, meta: Meta): boolean =>
  found.state === 'ok' && encodeMeta(found.meta) === encodeMeta(meta);

/** The caller holds the volume's lock. Returns false, and leaves the entry, if it does not have that record. */
export async function moveToDeleting(ctx: VerbContext, meta: Meta, { limit }: HeldScope): Promise<boolean> {
  const { storeRoot } = ctx;
  const { files } = storeRoot;
  const name = `${meta.id}.${randomBytes(6).toString('hex')}`;
  const [entry, staged] = [storeRoot.ownPath('trash', meta.id), storeRoot.ownPath('trash', name)];
  limit.check();
  if (!(await files.rename(entry, staged))) return false;
  if (!isSame(await readMeta(files, `${staged}/meta`, storeRoot.context.instance), meta)) {
    // If this fails, the next round of maintenance does it.
    await files.rename(staged, entry);
    limit.check();
    return false;
  }
  // One step, whatever the size. `reclaim` frees the space.
  const isMoved = await files.rename(staged, storeRoot.ownPath('deleting', `${name}.trash`));
  await files.sync(storeRoot.ownPath('trash'));
  // Another host took over our lock and moved the entry back.
  if (!isMoved) limit.check();
  return isMoved;
}

/** The caller holds the volume's lock. Moves the entries of interrupted purges back. Returns false if there are none. */
export async function restoreFromStaging(ctx: VerbContext, id: VolumeId, { limit }: HeldScope): Promise<boolean> {
  const { storeRoot, layout } = ctx;
  const { files } = storeRoot;
  const names = (await files.names(storeRoot.ownPath('trash'))).filter((name) => stagedId(name) === id);
  for (const name of names) {
    const staged = storeRoot.ownPath('trash', name);
    limit.check();
    try {
      await files.rename(staged, storeRoot.ownPath('trash', id));
    } catch (cause) {
      // Some NFS servers report a directory that is not empty as EIO.
      if (!isErrno(cause, 'ENOTEMPTY', 'EEXIST', 'EIO')) throw cause;
      // A deletion ran at the same time: the entry has one half, and the other half is here.
      for (const half of [layout.trashName, 'meta']) {
        const target = storeRoot.ownPath('trash', id, half);
        if ((await files.lstat(target)) === undefined) await files.rename(`${staged}/${half}`, target);
      }
      await files.rmdir(staged).catch(() => undefined);
    }
  }
  if (names.length > 0) await files.sync(storeRoot.ownPath('trash'));
  return names.length > 0;
}

/** Moves the entries of interrupted purges back, so that they expire again. `names`: the contents of `trash/`. */
export async function finishStaged(ctx: VerbContext, names: readonly string[], scope: Scope): Promise<void> {
  const { storeRoot } = ctx;
  const { hostLocks } = storeRoot;
  for (const id of new Set(names.flatMap((name) => stagedId(name) ?? []))) {
    scope.signal.throwIfAborted();
    const doing = `putting ${id} back into the trash`;
    // The purge may be under way on another host.
    if ((await ctx.runVerb(doing, [], scope, async () => hostLocks?.holderOf(id))) === 'another') continue;
    const work = ctx.runVerb(doing, [id], scope, (held) =>
      storeRoot.reserve.retryWithReserve(() => restoreFromStaging(ctx, id, held)),
    );
    await ignoreBusy(work).catch((cause: unknown) => {
      scope.signal.throwIfAborted();
      if (!(cause instanceof StowageError) || cause.code === 'unavailable') throw cause;
      // The next round tries again. Other entries must not wait for this one.
      scope.log.warn('a trash entry cannot be put back', { store: storeRoot.store, volume: id, why: cause.message });
    });
  }
}
