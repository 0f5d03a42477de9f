import { readdir, rename, rmdir } from 'node:fs/promises';
import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { lstatIfThere, renameIfThere, unlinkIfThere } from './files.ts';
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
  if (await there(dataPath(meta.name))) return false;
  const record = place.metaPath(meta.name);
  if (meta.movingTo !== undefined && (await hasMoved(parts, meta.movingTo))) {
    await rename(record, place.metaPath(meta.movingTo));
  } else if (meta.deletedAt !== undefined && (await there(place.own('trash', meta.id, layout.trashName)))) {
    await rename(record, place.own('trash', meta.id, 'meta'));
  } else if (await there(place.own('deleting', `${meta.id}${layout.suffix}`))) {
    await unlinkIfThere(record);
  } else return false;
  await place.sync();
  return true;
}

/** The data arrived under the new name, and no other volume took it meanwhile. */
export async function hasMoved({ place, dataPath }: Parts, to: string): Promise<boolean> {
  return (await there(dataPath(to))) && !(await there(place.metaPath(to)));
}

const there = async (path: string): Promise<boolean> => (await lstatIfThere(path)) !== undefined;

/** The same for what lies in the trash: restores that lost their second half, and folders that never got a record. */
export async function settleTrash(parts: Parts, scope: Scope): Promise<void> {
  const { place, layout } = parts;
  for (const id of (await readdir(place.own('trash'))).filter(isVolumeId)) {
    scope.signal.throwIfAborted();
    const read = await readMeta(place.own('trash', id, 'meta'), place.context.instance);
    const name = read.state === 'ok' ? read.meta.movingTo : undefined;
    if (read.state !== 'absent' && name === undefined) continue;
    // Held, since it may be on its way in or out at this moment.
    await parts.during(`settling ${id} in the trash`, name === undefined ? [id] : [id, name], scope, async () => {
      // Fails, as it should, when anything is in it.
      if (name === undefined) await rmdir(place.own('trash', id)).catch(() => undefined);
      else if (!(await there(place.own('trash', id, layout.trashName))) && (await hasMoved(parts, name)))
        await finishRestore(parts, id, name);
    });
  }
}

export async function finishRestore({ place }: Parts, id: VolumeId, name: string): Promise<void> {
  await renameIfThere(place.own('trash', id, 'meta'), place.metaPath(name));
  await rmdir(place.own('trash', id)).catch(() => undefined);
  await place.sync();
}
