import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId, VolumeName, VolumeRef } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { beingCreated } from './errors.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta } from './meta.ts';
import { tryTakeName } from './take-name.ts';
import type { HeldScope, VerbContext } from './verb-context.ts';

/**
 * Every verb moves the data first and the record second, each by one rename, with the intent written into the record
 * before. So after a crash the place of the data tells how far it came: still at home, nothing happened yet (the
 * intent is ignored from then on); elsewhere, the record follows. At each moment exactly one record counts.
 *
 * For who holds the volume, and has read the record since. True: something was finished, and the record is no longer
 * where it was.
 */
export async function finishInterrupted(ctx: VerbContext, meta: Meta, scope: HeldScope): Promise<boolean> {
  const { storeRoot, layout, dataPath } = ctx;
  const there = async (path: string): Promise<boolean> => (await storeRoot.files.lstat(path)) !== undefined;
  if (await there(dataPath(meta))) return false;
  const record = storeRoot.metaPath(meta.name);
  if (meta.movingTo !== undefined && (await hasDataMoved(ctx, meta, meta.movingTo))) {
    await moveRecord(ctx, record, meta.movingTo, scope);
  } else if (meta.deletedAt !== undefined && (await there(storeRoot.ownPath('trash', meta.id, layout.trashName)))) {
    scope.limit.check();
    await storeRoot.files.rename(record, storeRoot.ownPath('trash', meta.id, 'meta'));
  } else if (await there(storeRoot.ownPath('deleting', `${meta.id}${layout.suffix}`))) {
    scope.limit.check();
    await storeRoot.files.unlink(record);
  } else return false;
  await storeRoot.sync();
  return true;
}

/** With a record that was read before: while we waited for the volume, the name may have become another's. */
export const finishInterruptedLocked = (ctx: VerbContext, { id, name }: VolumeRef, scope: Scope): Promise<boolean> =>
  ctx.withVolumeLock(id, scope, async (held) => {
    const now = await ctx.read(name);
    return now.state === 'ok' && now.meta.id === id && finishInterrupted(ctx, now.meta, held);
  });

/** The record goes after the data. Another host may have begun to make something there: it will find the data. */
async function moveRecord(ctx: VerbContext, record: string, to: VolumeName, scope: HeldScope): Promise<void> {
  const { storeRoot } = ctx;
  const limit = ctx.limit();
  if ((await tryTakeName(ctx, to, scope)) === undefined) throw beingCreated(to, storeRoot.store);
  limit.check();
  scope.limit.check();
  await storeRoot.files.rename(record, storeRoot.metaPath(to));
}

/** The data arrived under the new name, and no other volume took it meanwhile: an empty record only keeps the name. */
export async function hasDataMoved(ctx: VerbContext, meta: Pick<Meta, 'path'>, to: Meta['name']): Promise<boolean> {
  if ((await ctx.storeRoot.files.lstat(ctx.dataPath({ ...meta, name: to }))) === undefined) return false;
  const { state } = await ctx.read(to);
  return state === 'absent' || state === 'torn';
}

/** The same for what lies in the trash: restores that lost their second half, and folders that never got a record. */
export async function finishInterruptedTrash(ctx: VerbContext, scope: Scope): Promise<void> {
  const { storeRoot } = ctx;
  const { files } = storeRoot;
  const read = (id: VolumeId): Promise<MetaRead> =>
    readMeta(files, storeRoot.ownPath('trash', id, 'meta'), storeRoot.context.instance);
  for (const id of (await files.names(storeRoot.ownPath('trash'))).filter(isVolumeId)) {
    scope.signal.throwIfAborted();
    // At work on it at this moment; or dead, and then it is that host's to finish when it comes back.
    if (((await storeRoot.hostLocks?.holderOf(id)) ?? 'nobody') !== 'nobody') continue;
    const before = await read(id);
    const name = before.state === 'ok' ? before.meta.movingTo : undefined;
    if (before.state !== 'absent' && name === undefined) continue;
    // Held, since it may be on its way in or out at this moment.
    const work = ctx.runVerb(
      `settling ${id} in the trash`,
      name === undefined ? [id] : [id, name],
      scope,
      async (held) => {
        const found = await read(id);
        // Fails, as it should, when anything is in it.
        if (found.state === 'absent') await files.rmdir(storeRoot.ownPath('trash', id)).catch(() => undefined);
        else if (found.state === 'ok') await finishRestore(ctx, found.meta, held);
      },
    );
    await ignoreBusy(work);
  }
}

/** What another host is at work on is left to it. */
export async function ignoreBusy(work: Promise<unknown>): Promise<void> {
  await work.catch((cause: unknown) => {
    if (!(cause instanceof StowageError) || cause.code !== 'busy') throw cause;
  });
}

/** The data have left the trash: the record follows. For who holds the volume. Undefined: they are still there. */
export async function finishRestore(ctx: VerbContext, meta: Meta, scope: HeldScope): Promise<VolumeName | undefined> {
  const { storeRoot, layout } = ctx;
  const { id, movingTo } = meta;
  if (
    movingTo === undefined ||
    (await storeRoot.files.lstat(storeRoot.ownPath('trash', id, layout.trashName))) !== undefined
  )
    return undefined;
  if (!(await hasDataMoved(ctx, meta, movingTo))) return undefined;
  await moveRecord(ctx, storeRoot.ownPath('trash', id, 'meta'), movingTo, scope);
  await removeTrashFolder(ctx, id);
  return movingTo;
}

export async function removeTrashFolder({ storeRoot }: VerbContext, id: VolumeId): Promise<void> {
  await storeRoot.files.rmdir(storeRoot.ownPath('trash', id)).catch(() => undefined);
  await storeRoot.sync();
}
