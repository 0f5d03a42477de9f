import { eachBounded } from '#base/each-bounded.ts';
import { StowageError } from '#core/errors.ts';
import type { TrashEntry, Volume, VolumeId, VolumeName } from '#core/model.ts';
import { isVolumeId, quoted } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import { dataUnrecorded } from './errors.ts';
import { finishInterrupted, finishRestore, removeTrashFolder } from './finish-interrupted.ts';
import type { HeldScope } from './held-scope.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta, withoutMove } from './meta.ts';
import { createObservedTime } from './observed-time.ts';
import { makeParents, pruneParents } from './parent-folders.ts';
import { takeName } from './take-name.ts';
import type { Expiry } from './trash-expiry.ts';
import { trashedId } from './trash-names.ts';
import { createTrashPurge, entryOf } from './trash-purge.ts';
import { restoreFromStaging } from './trash-staging.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;

/** An entry exists if `trash/<id>/meta` does. Its data are beside that file. */
export function createTrash(ctx: VerbContext): Trash {
  const { storeRoot, layout, runVerb, dataPath, volume } = ctx;
  const { files } = storeRoot;
  const dataOf = (id: VolumeId): string => storeRoot.ownPath('trash', id, layout.trashName);
  const recordOf = (id: VolumeId): string => storeRoot.ownPath('trash', id, 'meta');
  const trashPurge = createTrashPurge(ctx, createObservedTime(storeRoot, ctx.clock));
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(files, recordOf(id), storeRoot.context.instance);

  return {
    put: async (ref, { deletedAt, retention }, scope) => {
      const doing = `moving volume ${quoted(ref.name)} to the trash`;
      let expiry: Expiry | undefined;
      await ctx.runRemoval(doing, ref, scope, async (meta, held) => {
        const { limit } = held;
        expiry = await trashPurge.newExpiry(retention);
        const intent = { ...withoutMove(meta, meta.name), deletedAt, expiry };
        await storeRoot.replaceRecord(storeRoot.metaPath(meta.name), intent, limit.check);
        await files.makeFolder(storeRoot.ownPath('trash', meta.id));
        limit.check();
        const isThere = await files.rename(dataPath(meta), dataOf(meta.id));
        // The volume was already deleted, except for its record.
        if (!isThere && (await finishInterrupted(ctx, intent, held))) return removeTrashFolder(ctx, meta.id);
        limit.check();
        await files.rename(storeRoot.metaPath(meta.name), recordOf(meta.id));
        await files.sync(storeRoot.ownPath('trash', meta.id));
        await files.sync(storeRoot.ownPath('trash'));
        await storeRoot.sync();
        await pruneParents(ctx, meta);
      });
      if (expiry !== undefined) return expiry.expiresAt;
      // An earlier call moved the volume to the trash.
      const found = await runVerb(doing, [], scope, () => read(ref.id));
      return found.state === 'ok' ? entryOf(ctx, found.meta).expiresAt : undefined;
    },
    list: async (scope) => {
      const doing = 'listing the trash';
      const all = await runVerb(doing, [], scope, () => files.names(storeRoot.ownPath('trash')));
      const entries = new Map<VolumeId, TrashEntry>();
      const names = all.filter((name) => trashedId(name) !== undefined);
      await eachBounded(names, maxConcurrentReads, async (name) => {
        const path = storeRoot.ownPath('trash', name, 'meta');
        const found = await runVerb(doing, [], scope, () => readMeta(files, path, storeRoot.context.instance));
        // If an interrupted purge moved the entry and a later deletion made a new one, the record at the usual path wins.
        if (found.state !== 'ok' || (!isVolumeId(name) && entries.has(found.meta.id))) return;
        entries.set(found.meta.id, entryOf(ctx, found.meta));
      });
      return [...entries.values()];
    },
    restore: (id, name, scope) =>
      runVerb(`restoring volume ${quoted(name)}`, [name, id], scope, (held) => restore(id, name, held)),
    purge: trashPurge.purge,
    listExpired: trashPurge.listExpired,
    purgeExpired: trashPurge.purgeExpired,
  };

  async function restore(id: VolumeId, name: VolumeName, scope: HeldScope): Promise<Volume> {
    const target = await ctx.read(name);
    if (target.state === 'ok' && target.meta.id === id) return volume(target.meta);
    // An interrupted purge may have moved the entry, or half of it.
    await restoreFromStaging(ctx, id, scope);
    const found = await read(id);
    if (found.state === 'absent' || found.state === 'torn') {
      storeRoot.hostLocks?.forget(id, 'not found');
      throw notInTrash(id, storeRoot.store);
    }
    if (found.state === 'unreadable') throw found.error;
    const { meta } = found;
    // An earlier call may have moved the data out, perhaps under another name.
    const restoredAs = await finishRestore(ctx, meta, scope);
    if (restoredAs === name) return volume(withoutMove(meta, name));
    if (restoredAs !== undefined) throw notInTrash(id, storeRoot.store);
    await moveOutOfTrash(meta, name, target, scope);
    return volume(withoutMove({ ...meta, revision: meta.revision + 1 }, name));
  }

  /** If another volume now has this volume's path, the restored volume gets a new path beside it. */
  async function freePathFor(meta: Meta, name: Meta['name']): Promise<Pick<Meta, 'path'>> {
    const newDataPath = dataPath({ ...meta, name });
    if ((await files.lstat(newDataPath)) === undefined) return {};
    const path = `${meta.path}-${meta.id.slice('sv1-'.length, 'sv1-'.length + 8)}`;
    if (meta.path === undefined || (await files.lstat(dataPath({ name, path }))) !== undefined)
      throw dataUnrecorded(name, newDataPath, storeRoot.store);
    return { path };
  }

  async function moveOutOfTrash(before: Meta, name: Meta['name'], target: MetaRead, scope: HeldScope): Promise<void> {
    const taken = await takeName(ctx, name, target, scope);
    let meta = before;
    try {
      meta = { ...before, ...(await freePathFor(before, name)) };
      const newDataPath = dataPath({ ...meta, name });
      const moving = { ...meta, movingTo: name, revision: meta.revision + 1 };
      await storeRoot.replaceRecord(recordOf(meta.id), moving, taken.check);
      await makeParents(ctx, meta, scope);
      taken.check();
      if (!(await files.rename(dataOf(meta.id), newDataPath))) throw notInTrash(meta.id, storeRoot.store);
    } catch (cause) {
      await taken.release(cause);
      throw cause;
    }
    taken.check();
    await files.rename(recordOf(meta.id), storeRoot.metaPath(name));
    await removeTrashFolder(ctx, meta.id);
  }
}

function notInTrash(id: VolumeId, store: string): StowageError {
  return new StowageError(`there is no volume ${id} in the trash of store ${store}`, {
    code: 'not-found',
    reason: 'trash-unknown',
    action: `List the trash with: stowage volume trash list --store ${store}`,
  });
}
