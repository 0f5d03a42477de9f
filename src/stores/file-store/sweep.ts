import type { Scope } from '#base/log.ts';
import type { VolumeName } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Housekeeping } from '#core/ports.ts';
import { isMovedHere } from './adopt.ts';
import { finishInterruptedLocked, finishInterruptedTrash, unlessBusy } from './finish-interrupted.ts';
import { removeLeftovers } from './leftovers.ts';
import { readMeta } from './meta.ts';
import { removeGoneLocks } from './orphaned-locks.ts';
import { recordedNames } from './read-verbs.ts';
import { finishStaged } from './trash-staging.ts';
import type { Parts } from './verb-context.ts';

/** No volume can have this name, so it locks nothing else. */
const sweeping = '.sweep';

export function createSweep(parts: Parts): Required<Pick<Housekeeping, 'sweep' | 'reclaim'>> {
  const { place, during } = parts;

  async function sweep(scope: Scope): Promise<void> {
    await recover(parts, scope);
    parts.unsettled = false;
  }

  async function reclaim(scope: Scope): Promise<void> {
    // Settled first, while `deleting/` still tells which data were on their way out when something failed.
    if (parts.unsettled) await sweep(scope);
    // Files of other hosts are removed once they have been seen for long: the sweep after opening has seen them first.
    await removeLeftovers(place);
    parts.undeletable = await place.files.empty(place.own('deleting'), scope);
    await place.reserve.refill();
  }

  return {
    sweep: (scope) => during('sweeping', [sweeping], scope, () => sweep(scope), 'long'),
    reclaim: (scope) => during('freeing the space of deleted volumes', [sweeping], scope, () => reclaim(scope), 'long'),
  };
}

async function recover(parts: Parts, scope: Scope): Promise<void> {
  const { place, layout, during } = parts;
  const entries = new Set(await place.files.names(place.root));
  for (const name of recordedNames([...entries])) {
    // One listing tells which records lack their data; only those can be half of something.
    if (entries.has(`${name}${layout.suffix}`)) continue;
    scope.signal.throwIfAborted();
    await unlessBusy(during(`settling volume ${quoted(name)}`, [name], scope, () => finishRecord(parts, name, scope)));
  }
  await finishStaged(parts, await place.files.names(place.own('trash')), scope);
  await finishInterruptedTrash(parts, scope);
  await giveNamesBack(parts, scope);
  await forgetTakenIn(parts);
  await removeGoneLocks(parts, scope);
  await removeLeftovers(place);
}

async function finishRecord(parts: Parts, name: VolumeName, scope: Scope): Promise<void> {
  const { place, dataPath } = parts;
  const read = await parts.read(name);
  if (read.state === 'torn' && (await place.files.look(dataPath({ name }))) === undefined) {
    if (!(await parts.tryTakeTorn(name))) return;
    await place.files.unlink(place.metaPath(name));
    scope.log.info('removed the record of an interrupted creation', { volume: name });
  }
  if (read.state !== 'ok' || read.meta.instance !== place.context.instance) return;
  const { id } = read.meta;
  if (((await place.others?.holderOf(id)) ?? 'nobody') !== 'nobody') return;
  if (await finishInterruptedLocked(parts, { id, name }, scope))
    scope.log.info('finished an interrupted operation', { volume: name, id });
}

/** Names that this instance had taken for data that are there, when it died before it could record them. */
async function giveNamesBack(parts: Parts, scope: Scope): Promise<void> {
  const { place, layout, during } = parts;
  const { others, files, metaPath } = place;
  if (others === undefined) return;
  const entries = await files.list(place.root);
  const all = new Set(entries.map(({ name }) => name));
  for (const name of recordedNames(entries.flatMap(({ name, isEmpty }) => (isEmpty === true ? [name] : [])))) {
    if (!all.has(`${name}${layout.suffix}`)) continue;
    scope.signal.throwIfAborted();
    await unlessBusy(
      during(`giving the name ${quoted(name)} back`, [name], scope, async () => {
        if (await isMovedHere(parts, name, scope)) return;
        if (await parts.tryTakeTorn(name)) await files.unlink(metaPath(name));
      }),
    );
  }
}

/** The record of a released volume that has been taken in again. */
async function forgetTakenIn({ place, read }: Parts): Promise<void> {
  for (const entry of await place.files.names(place.own('retained'))) {
    const path = place.own('retained', entry);
    const released = await readMeta(place.files, path, place.context.instance);
    if (released.state !== 'ok') continue;
    const now = await read(released.meta.name);
    if (now.state === 'ok' && now.meta.id === released.meta.id) await place.files.unlink(path);
  }
}
