import { mkdir, readdir, rename } from 'node:fs/promises';
import { StowageError } from '#core/errors.ts';
import type { TrashEntry, Volume, VolumeId, VolumeName } from '#core/model.ts';
import { isVolumeId, quoted } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import { dataUnrecorded, nameTaken } from './errors.ts';
import { eachBounded, lstatIfThere, renameIfThere, syncFolder } from './files.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta, settled } from './meta.ts';
import type { Parts } from './parts.ts';
import { finishRestore } from './settle.ts';

const readsAtOnce = 16;

/** `trash/<id>/meta` is what makes an entry; the data lie beside it. */
export function createTrash(parts: Parts): Trash {
  const { place, layout, during, dataPath, volume } = parts;
  const dataOf = (id: VolumeId): string => place.own('trash', id, layout.trashName);
  const recordOf = (id: VolumeId): string => place.own('trash', id, 'meta');
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(recordOf(id), place.context.instance);

  return {
    put: (ref, deletedAt, scope) =>
      parts.emptying(`moving volume ${quoted(ref.name)} to the trash`, ref, scope, async (meta) => {
        await place.replace(place.metaPath(meta.name), { ...settled(meta, meta.name), deletedAt });
        await mkdir(place.own('trash', meta.id), { mode: 0o700, recursive: true });
        await renameIfThere(dataPath(meta.name), dataOf(meta.id));
        await rename(place.metaPath(meta.name), recordOf(meta.id));
        await syncFolder(place.own('trash', meta.id));
        await syncFolder(place.own('trash'));
        await place.sync();
      }),
    list: async (scope) => {
      const doing = 'listing the trash';
      const all = await during(doing, [], scope, () => readdir(place.own('trash')));
      const entries: TrashEntry[] = [];
      await eachBounded(all.filter(isVolumeId), readsAtOnce, async (id) => {
        const found = await during(doing, [], scope, () => read(id));
        if (found.state !== 'ok') return;
        entries.push({ volume: volume(found.meta), deletedAt: found.meta.deletedAt ?? 0 });
      });
      return entries;
    },
    restore: (id, name, scope) =>
      during(`restoring volume ${quoted(name)}`, [name, id], scope, () => restore(id, name)),
    purge: (id, scope) =>
      during(`purging ${id} from the trash`, [id], scope, () =>
        parts.reserve.backing(async () => {
          // One step, whatever its size; `reclaim` frees the room.
          await renameIfThere(place.own('trash', id), place.own('deleting', `${id}.trash`));
          await syncFolder(place.own('trash'));
        }),
      ),
  };

  async function restore(id: VolumeId, name: VolumeName): Promise<Volume> {
    const target = await parts.read(name);
    if (target.state === 'ok' && target.meta.id === id) return volume(target.meta);
    const found = await read(id);
    if (found.state === 'absent' || found.state === 'torn') throw notInTrash(id, place.store);
    if (found.state === 'unreadable') throw found.error;
    if (target.state !== 'absent') throw nameTaken(name, place.store);
    const half = found.meta.movingTo === name && (await lstatIfThere(dataOf(id))) === undefined;
    if (!half) await moveOut(found.meta, name);
    await finishRestore(parts, id, name);
    return volume(settled({ ...found.meta, revision: found.meta.revision + (half ? 0 : 1) }, name));
  }

  async function moveOut(meta: Meta, name: Meta['name']): Promise<void> {
    if ((await lstatIfThere(dataPath(name))) !== undefined) throw dataUnrecorded(name, dataPath(name), place.store);
    await place.replace(recordOf(meta.id), { ...meta, movingTo: name, revision: meta.revision + 1 });
    await renameIfThere(dataOf(meta.id), dataPath(name));
  }
}

function notInTrash(id: VolumeId, store: string): StowageError {
  return new StowageError(`there is no volume ${id} in the trash of store ${store}`, {
    code: 'not-found',
    reason: 'trash-unknown',
    action: `See what can be restored with: stowage volume trash list --store ${store}`,
  });
}
