import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import type { Meta } from './meta.ts';
import { readMeta } from './meta.ts';
import type { Parts } from './parts.ts';

/**
 * Every verb moves the data first and the record second, each by one rename, with the intent written into the record
 * before. So after a crash the place of the data tells how far it came: still at home, nothing happened yet (the
 * intent is ignored from then on); elsewhere, the record follows. At each moment exactly one record counts.
 *
 * True: something was finished, and the record is no longer where it was.
 */
export async function settle(parts: Parts, meta: Meta): Promise<boolean> {
  const { place, layout, dataPath } = parts;
  const there = async (path: string): Promise<boolean> => (await place.files.look(path)) !== undefined;
  if (await there(dataPath(meta))) return false;
  const record = place.metaPath(meta.name);
  if (meta.movingTo !== undefined && (await hasMoved(parts, meta, meta.movingTo))) {
    await place.files.rename(record, place.metaPath(meta.movingTo));
  } else if (meta.deletedAt !== undefined && (await there(place.own('trash', meta.id, layout.trashName)))) {
    await place.files.rename(record, place.own('trash', meta.id, 'meta'));
  } else if (await there(place.own('deleting', `${meta.id}${layout.suffix}`))) {
    await place.files.unlink(record);
  } else return false;
  await place.sync();
  return true;
}

/** The data arrived under the new name, and no other volume took it meanwhile: an empty record only keeps the name. */
export async function hasMoved(parts: Parts, meta: Pick<Meta, 'path'>, to: Meta['name']): Promise<boolean> {
  if ((await parts.place.files.look(parts.dataPath({ ...meta, name: to }))) === undefined) return false;
  const { state } = await parts.read(to);
  return state === 'absent' || state === 'torn';
}

/** The same for what lies in the trash: restores that lost their second half, and folders that never got a record. */
export async function settleTrash(parts: Parts, scope: Scope): Promise<void> {
  const { place, layout } = parts;
  const { files } = place;
  for (const id of (await files.names(place.own('trash'))).filter(isVolumeId)) {
    scope.signal.throwIfAborted();
    const read = await readMeta(files, place.own('trash', id, 'meta'), place.context.instance);
    const name = read.state === 'ok' ? read.meta.movingTo : undefined;
    if (read.state !== 'absent' && (name === undefined || read.state !== 'ok')) continue;
    // Held, since it may be on its way in or out at this moment.
    await parts.during(`settling ${id} in the trash`, name === undefined ? [id] : [id, name], scope, async () => {
      // Fails, as it should, when anything is in it.
      if (name === undefined || read.state !== 'ok') await files.rmdir(place.own('trash', id)).catch(() => undefined);
      else if (
        (await files.look(place.own('trash', id, layout.trashName))) === undefined &&
        (await hasMoved(parts, read.meta, name))
      )
        await finishRestore(parts, id, name);
    });
  }
}

export async function finishRestore({ place }: Parts, id: VolumeId, name: string): Promise<void> {
  await place.files.rename(place.own('trash', id, 'meta'), place.metaPath(name));
  await place.files.rmdir(place.own('trash', id)).catch(() => undefined);
  await place.sync();
}
