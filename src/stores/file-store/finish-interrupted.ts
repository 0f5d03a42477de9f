import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId, VolumeName, VolumeRef } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { beingCreated } from './errors.ts';
import type { HeldScope } from './held-scope.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta } from './meta.ts';
import { tryTakeName } from './take-name.ts';
import type { VerbContext } from './verb-context.ts';

/**
 * Every verb writes its intent into the record, then moves the data, then the record, each by one rename. After a crash the location of the
 * data shows how far it came. If they did not move, nothing happened, and later verbs ignore the intent. If they moved, this moves the record,
 * too. At each moment exactly one record counts.
 *
 * Call it with the volume locked and a record that was read under the lock. True: it finished an operation, and the record has moved.
 */
export async function finishInterrupted(ctx: VerbContext, meta: Meta, scope: HeldScope): Promise<boolean> {
  const { storeRoot, layout, dataPath } = ctx;
  const exists = async (path: string): Promise<boolean> => (await storeRoot.files.lstat(path)) !== undefined;
  if (await exists(dataPath(meta))) return false;
  const record = storeRoot.metaPath(meta.name);
  if (meta.movingTo !== undefined && (await hasDataMoved(ctx, meta, meta.movingTo))) {
    await moveRecord(ctx, record, meta.movingTo, scope);
  } else if (meta.deletedAt !== undefined && (await exists(storeRoot.ownPath('trash', meta.id, layout.trashName)))) {
    scope.limit.check();
    await storeRoot.files.rename(record, storeRoot.ownPath('trash', meta.id, 'meta'));
  } else if (await exists(storeRoot.ownPath('deleting', `${meta.id}${layout.suffix}`))) {
    scope.limit.check();
    await storeRoot.files.unlink(record);
  } else return false;
  await storeRoot.sync();
  return true;
}

/** Locks the volume, and reads its record again: the name may have gone to another volume while we waited. */
export const finishInterruptedLocked = (ctx: VerbContext, { id, name }: VolumeRef, scope: Scope): Promise<boolean> =>
  ctx.withVolumeLock(id, scope, async (held) => {
    const current = await ctx.read(name);
    return current.state === 'ok' && current.meta.id === id && finishInterrupted(ctx, current.meta, held);
  });

/** Moves the record after the data. Another host may have begun to create a volume of that name; it will find the data. */
async function moveRecord(ctx: VerbContext, record: string, to: VolumeName, scope: HeldScope): Promise<void> {
  const { storeRoot } = ctx;
  const limit = ctx.limit();
  if ((await tryTakeName(ctx, to, scope)) === undefined) throw beingCreated(to, storeRoot.store);
  limit.check();
  scope.limit.check();
  await storeRoot.files.rename(record, storeRoot.metaPath(to));
}

/** Whether the data have the new name, and no other volume has taken it in the meantime. An empty record only reserves the name. */
export async function hasDataMoved(ctx: VerbContext, meta: Pick<Meta, 'path'>, to: Meta['name']): Promise<boolean> {
  if ((await ctx.storeRoot.files.lstat(ctx.dataPath({ ...meta, name: to }))) === undefined) return false;
  const { state } = await ctx.read(to);
  return state === 'absent' || state === 'torn';
}

/** Finishes interrupted operations in the trash: restores whose record did not move, and folders that never got a record. */
export async function finishInterruptedTrash(ctx: VerbContext, scope: Scope): Promise<void> {
  const { storeRoot } = ctx;
  const { files } = storeRoot;
  const read = (id: VolumeId): Promise<MetaRead> =>
    readMeta(files, storeRoot.ownPath('trash', id, 'meta'), storeRoot.context.instance);
  for (const id of (await files.names(storeRoot.ownPath('trash'))).filter(isVolumeId)) {
    scope.signal.throwIfAborted();
    // Another host works on it right now, or has died; then that host finishes the operation when it comes back.
    if (((await storeRoot.hostLocks?.holderOf(id)) ?? 'nobody') !== 'nobody') continue;
    const before = await read(id);
    const name = before.state === 'ok' ? before.meta.movingTo : undefined;
    if (before.state !== 'absent' && name === undefined) continue;
    // Under the lock, since the volume may be moving into or out of the trash right now.
    const work = ctx.runVerb(
      `finishing an interrupted operation on ${id} in the trash`,
      name === undefined ? [id] : [id, name],
      scope,
      async (held) => {
        const found = await read(id);
        // rmdir fails if the folder is not empty, as it should.
        if (found.state === 'absent') await files.rmdir(storeRoot.ownPath('trash', id)).catch(() => undefined);
        else if (found.state === 'ok') await finishRestore(ctx, found.meta, held);
      },
    );
    await ignoreBusy(work);
  }
}

/** Skips volumes that another host is working on. */
export async function ignoreBusy(work: Promise<unknown>): Promise<void> {
  await work.catch((cause: unknown) => {
    if (!(cause instanceof StowageError) || cause.code !== 'busy') throw cause;
  });
}

/** Moves the record if the data have left the trash. Call it with the volume locked. Undefined: the data are still in the trash. */
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
