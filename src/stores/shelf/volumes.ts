import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeName } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Store } from '#core/ports.ts';
import { dataUnrecorded } from './errors.ts';
import { isRefusal } from './files.ts';
import { type Meta, sameLabels, settled } from './meta.ts';
import { freeName, takeName } from './naming.ts';
import { pruneParents } from './parents.ts';
import type { Parts } from './parts.ts';
import { usable } from './reading.ts';

type Verbs = 'delete' | 'release' | 'rename' | 'label' | 'expand' | 'claim';

export function createVolumes(parts: Parts): Pick<Store, Verbs> {
  const { place, layout, during, emptying, dataPath, held, volume } = parts;
  const { files } = place;
  const called = (verb: string, name: string): string => `${verb} volume ${quoted(name)}`;

  async function change(meta: Meta, to: Partial<Meta>): Promise<Volume> {
    const next = { ...settled(meta, meta.name), ...to, revision: meta.revision + 1 };
    await place.replace(place.metaPath(meta.name), next);
    return volume(next);
  }

  return {
    delete: (ref, scope) =>
      emptying(called('deleting', ref.name), ref, scope, async (meta) => {
        await layout.discard(dataPath(meta), meta.id);
        await files.unlink(place.metaPath(meta.name));
        await place.sync();
        await pruneParents(parts, meta);
      }),
    release: (ref, scope) =>
      emptying(called('releasing', ref.name), ref, scope, async (meta) => {
        // Outside the root the file's name no longer tells the volume's: the record itself must, and a name it had
        // before it was renamed, or an abandoned intent, must not.
        await place.replace(place.metaPath(meta.name), settled(meta, meta.name));
        await files.rename(place.metaPath(meta.name), place.own('retained', `${meta.id}.meta`));
        await place.sync();
      }),
    rename: (ref, to, scope) =>
      during(called('renaming', ref.name), [ref.name, to, ref.id], scope, () => move(parts, ref, to)),
    label: (ref, labels, scope) =>
      during(called('labelling', ref.name), [ref.name, ref.id], scope, async () => {
        const meta = await held(ref);
        return sameLabels(meta.labels, labels) ? volume(meta) : change(meta, { labels });
      }),
    claim: (ref, instance, scope) =>
      during(called('claiming', ref.name), [ref.name, ref.id], scope, async () => {
        const meta = await held(ref);
        return meta.instance === instance ? volume(meta) : change(meta, { instance });
      }),
    expand: (ref, bytes, scope) =>
      during(called('expanding', ref.name), [ref.name, ref.id], scope, async () => {
        const meta = await held(ref);
        if (meta.bytes !== undefined && bytes < meta.bytes) throw shrinking(meta, bytes);
        layout.refuse(bytes, meta.access);
        // Data first: a record that promises more than there is would be wrong, the other way round is only generous.
        await layout.grow(await usable(parts, meta), meta, bytes, scope);
        return meta.bytes === bytes ? volume(meta) : change(meta, { bytes });
      }),
  };
}

async function move(parts: Parts, ref: Pick<Volume, 'id' | 'name'>, to: VolumeName): Promise<Volume> {
  const { place, dataPath, volume } = parts;
  const target = await parts.read(to);
  if (target.state === 'ok' && target.meta.id === ref.id) return volume(target.meta);
  const meta = await parts.held(ref);
  // `held` has just finished the move that an earlier call began.
  if (meta.name === to) return volume(meta);
  await freeName(parts, to, target);
  const stays = meta.path !== undefined;
  const home = dataPath({ ...meta, name: to });
  // A rename would silently replace an empty directory.
  if (!stays && (await place.files.look(home)) !== undefined) throw dataUnrecorded(to, home, place.store);
  const taken = await takeName(parts, to);
  const moving: Meta = { ...settled(meta, meta.name), movingTo: to, revision: meta.revision + 1 };
  try {
    await place.replace(place.metaPath(meta.name), moving);
    if (!stays) await place.files.rename(dataPath(meta), home);
  } catch (cause) {
    if (place.others === undefined || isRefusal(cause)) await place.replace(place.metaPath(meta.name), meta);
    await taken.giveBack(cause);
    throw cause;
  }
  await place.files.rename(place.metaPath(meta.name), place.metaPath(to));
  await place.sync();
  return volume(settled(moving, to));
}

function shrinking(meta: Meta, bytes: bigint): StowageError {
  return new StowageError(`volume ${quoted(meta.name)} has ${meta.bytes} bytes and cannot shrink to ${bytes}`, {
    code: 'out-of-range',
    reason: 'volume-would-shrink',
    action: 'Ask for at least its present size, or make a smaller volume and copy the data.',
  });
}
