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
  const { storeRoot, during } = parts;

  async function sweep(scope: Scope): Promise<void> {
    await recover(parts, scope);
    parts.unsettled = false;
  }

  async function reclaim(scope: Scope): Promise<void> {
    // Settled first, while `deleting/` still tells which data were on their way out when something failed.
    if (parts.unsettled) await sweep(scope);
    // Files of other hosts are removed once they have been seen for long: the sweep after opening has seen them first.
    await removeLeftovers(storeRoot);
    parts.undeletable = await storeRoot.files.empty(storeRoot.own('deleting'), scope);
    await storeRoot.reserve.refill();
  }

  return {
    sweep: (scope) => during('sweeping', [sweeping], scope, () => sweep(scope), 'long'),
    reclaim: (scope) => during('freeing the space of deleted volumes', [sweeping], scope, () => reclaim(scope), 'long'),
  };
}

async function recover(parts: Parts, scope: Scope): Promise<void> {
  const { storeRoot, layout, during } = parts;
  const entries = new Set(await storeRoot.files.names(storeRoot.root));
  for (const name of recordedNames([...entries])) {
    // One listing tells which records lack their data; only those can be half of something.
    if (entries.has(`${name}${layout.suffix}`)) continue;
    scope.signal.throwIfAborted();
    await unlessBusy(during(`settling volume ${quoted(name)}`, [name], scope, () => finishRecord(parts, name, scope)));
  }
  await finishStaged(parts, await storeRoot.files.names(storeRoot.own('trash')), scope);
  await finishInterruptedTrash(parts, scope);
  await giveNamesBack(parts, scope);
  await forgetTakenIn(parts);
  await removeGoneLocks(parts, scope);
  await removeLeftovers(storeRoot);
}

async function finishRecord(parts: Parts, name: VolumeName, scope: Scope): Promise<void> {
  const { storeRoot, dataPath } = parts;
  const read = await parts.read(name);
  if (read.state === 'torn' && (await storeRoot.files.look(dataPath({ name }))) === undefined) {
    if (!(await parts.tryTakeTorn(name))) return;
    await storeRoot.files.unlink(storeRoot.metaPath(name));
    scope.log.info('removed the record of an interrupted creation', { volume: name });
  }
  if (read.state !== 'ok' || read.meta.instance !== storeRoot.context.instance) return;
  const { id } = read.meta;
  if (((await storeRoot.others?.holderOf(id)) ?? 'nobody') !== 'nobody') return;
  if (await finishInterruptedLocked(parts, { id, name }, scope))
    scope.log.info('finished an interrupted operation', { volume: name, id });
}

/** Names that this instance had taken for data that are there, when it died before it could record them. */
async function giveNamesBack(parts: Parts, scope: Scope): Promise<void> {
  const { storeRoot, layout, during } = parts;
  const { others, files, metaPath } = storeRoot;
  if (others === undefined) return;
  const entries = await files.list(storeRoot.root);
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
async function forgetTakenIn({ storeRoot, read }: Parts): Promise<void> {
  for (const entry of await storeRoot.files.names(storeRoot.own('retained'))) {
    const path = storeRoot.own('retained', entry);
    const released = await readMeta(storeRoot.files, path, storeRoot.context.instance);
    if (released.state !== 'ok') continue;
    const now = await read(released.meta.name);
    if (now.state === 'ok' && now.meta.id === released.meta.id) await storeRoot.files.unlink(path);
  }
}
