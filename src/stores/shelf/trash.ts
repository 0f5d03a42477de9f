import { eachBounded } from '#base/each-bounded.ts';
import { StowageError } from '#core/errors.ts';
import type { TrashEntry, Volume, VolumeId, VolumeName } from '#core/model.ts';
import { isVolumeId, quoted } from '#core/names.ts';
import type { Trash } from '#core/ports.ts';
import { dataUnrecorded } from './errors.ts';
import type { Meta, MetaRead } from './meta.ts';
import { readMeta, settled } from './meta.ts';
import { freeName, takeName } from './naming.ts';
import { makeParents, pruneParents } from './parents.ts';
import type { Parts } from './parts.ts';
import { finishRestore } from './settle.ts';

const readsAtOnce = 16;

/** `trash/<id>/meta` is what makes an entry; the data lie beside it. */
export function createTrash(parts: Parts): Trash {
  const { place, layout, during, dataPath, volume } = parts;
  const { files } = place;
  const dataOf = (id: VolumeId): string => place.own('trash', id, layout.trashName);
  const recordOf = (id: VolumeId): string => place.own('trash', id, 'meta');
  const read = (id: VolumeId): Promise<MetaRead> => readMeta(files, recordOf(id), place.context.instance);

  return {
    put: (ref, deletedAt, scope) =>
      parts.emptying(`moving volume ${quoted(ref.name)} to the trash`, ref, scope, async (meta) => {
        await place.replace(place.metaPath(meta.name), { ...settled(meta, meta.name), deletedAt });
        await files.makeFolder(place.own('trash', meta.id));
        await files.rename(dataPath(meta), dataOf(meta.id));
        await files.rename(place.metaPath(meta.name), recordOf(meta.id));
        await files.sync(place.own('trash', meta.id));
        await files.sync(place.own('trash'));
        await place.sync();
        await pruneParents(parts, meta);
      }),
    list: async (scope) => {
      const doing = 'listing the trash';
      const all = await during(doing, [], scope, () => files.names(place.own('trash')));
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
        place.reserve.backing(async () => {
          // One step, whatever its size; `reclaim` frees the room.
          await files.rename(place.own('trash', id), place.own('deleting', `${id}.trash`));
          await files.sync(place.own('trash'));
        }),
      ),
  };

  async function restore(id: VolumeId, name: VolumeName): Promise<Volume> {
    const target = await parts.read(name);
    if (target.state === 'ok' && target.meta.id === id) return volume(target.meta);
    const found = await read(id);
    if (found.state === 'absent' || found.state === 'torn') throw notInTrash(id, place.store);
    if (found.state === 'unreadable') throw found.error;
    const { meta } = found;
    const half = meta.movingTo === name && (await files.look(dataOf(id))) === undefined;
    if (!half || target.state !== 'torn') await freeName(parts, name, target);
    if (!half) await moveOut(meta, name);
    await finishRestore(parts, id, name);
    return volume(settled({ ...meta, revision: meta.revision + (half ? 0 : 1) }, name));
  }

  async function moveOut(meta: Meta, name: Meta['name']): Promise<void> {
    const home = dataPath({ ...meta, name });
    if ((await files.look(home)) !== undefined) throw dataUnrecorded(name, home, place.store);
    const taken = await takeName(parts, name);
    try {
      await place.replace(recordOf(meta.id), { ...meta, movingTo: name, revision: meta.revision + 1 });
      await makeParents(parts, meta);
      await files.rename(dataOf(meta.id), home);
    } catch (cause) {
      await taken.giveBack(cause);
      throw cause;
    }
  }
}

function notInTrash(id: VolumeId, store: string): StowageError {
  return new StowageError(`there is no volume ${id} in the trash of store ${store}`, {
    code: 'not-found',
    reason: 'trash-unknown',
    action: `See what can be restored with: stowage volume trash list --store ${store}`,
  });
}
