import type { Scope } from '#base/log.ts';
import type { VolumeName } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Housekeeping } from '#core/ports.ts';
import { isMoveTarget } from './adopt.ts';
import { finishInterruptedLocked, finishInterruptedTrash, ignoreBusy } from './finish-interrupted.ts';
import { removeLeftovers } from './leftovers.ts';
import { readMeta } from './meta.ts';
import { removeOrphanedLocks } from './orphaned-locks.ts';
import { recordedNames } from './read-verbs.ts';
import { finishStaged } from './trash-staging.ts';
import type { VerbContext } from './verb-context.ts';

/** No volume can have this name, so it locks nothing else. */
const sweepLockName = '.sweep';

export function createSweep(ctx: VerbContext): Required<Pick<Housekeeping, 'sweep' | 'reclaim'>> {
  const { storeRoot, runVerb } = ctx;

  async function sweep(scope: Scope): Promise<void> {
    await recover(ctx, scope);
    ctx.needsSweep = false;
  }

  async function reclaim(scope: Scope): Promise<void> {
    // Sweep first: until it is emptied, `deleting/` shows which data were being removed when an operation failed.
    if (ctx.needsSweep) await sweep(scope);
    // Files of other hosts are removed after a time that starts when this process first sees them, in the sweep after opening.
    await removeLeftovers(storeRoot);
    ctx.undeletable = await storeRoot.files.emptyFolder(storeRoot.ownPath('deleting'), scope);
    await storeRoot.reserve.refill();
  }

  return {
    sweep: (scope) => runVerb('sweeping', [sweepLockName], scope, () => sweep(scope), 'long'),
    reclaim: (scope) =>
      runVerb('freeing the space of deleted volumes', [sweepLockName], scope, () => reclaim(scope), 'long'),
  };
}

async function recover(ctx: VerbContext, scope: Scope): Promise<void> {
  const { storeRoot, layout, runVerb } = ctx;
  const entries = new Set(await storeRoot.files.names(storeRoot.root));
  for (const name of recordedNames([...entries])) {
    // One listing shows which records lack their data. Only those can belong to an interrupted operation.
    if (entries.has(`${name}${layout.suffix}`)) continue;
    scope.signal.throwIfAborted();
    await ignoreBusy(
      runVerb(`finishing an interrupted operation on volume ${quoted(name)}`, [name], scope, () =>
        finishRecord(ctx, name, scope),
      ),
    );
  }
  await finishStaged(ctx, await storeRoot.files.names(storeRoot.ownPath('trash')), scope);
  await finishInterruptedTrash(ctx, scope);
  await releaseAbandonedNames(ctx, scope);
  await removeReadoptedRecords(ctx);
  await removeOrphanedLocks(ctx, scope);
  await removeLeftovers(storeRoot);
}

async function finishRecord(ctx: VerbContext, name: VolumeName, scope: Scope): Promise<void> {
  const { storeRoot, dataPath } = ctx;
  const read = await ctx.read(name);
  if (read.state === 'torn' && (await storeRoot.files.lstat(dataPath({ name }))) === undefined) {
    if (!(await ctx.tryTakeOverTorn(name))) return;
    await storeRoot.files.unlink(storeRoot.metaPath(name));
    scope.log.info('removed the record of an interrupted creation', { volume: name });
  }
  if (read.state !== 'ok' || read.meta.instance !== storeRoot.context.instance) return;
  const { id } = read.meta;
  if (((await storeRoot.hostLocks?.holderOf(id)) ?? 'nobody') !== 'nobody') return;
  if (await finishInterruptedLocked(ctx, { id, name }, scope))
    scope.log.info('finished an interrupted operation', { volume: name, id });
}

/** Releases names that this instance reserved for existing data, if it died before it could write their records. */
async function releaseAbandonedNames(ctx: VerbContext, scope: Scope): Promise<void> {
  const { storeRoot, layout, runVerb } = ctx;
  const { hostLocks, files, metaPath } = storeRoot;
  if (hostLocks === undefined) return;
  const entries = await files.list(storeRoot.root);
  const all = new Set(entries.map(({ name }) => name));
  for (const name of recordedNames(entries.flatMap(({ name, isEmpty }) => (isEmpty === true ? [name] : [])))) {
    if (!all.has(`${name}${layout.suffix}`)) continue;
    scope.signal.throwIfAborted();
    await ignoreBusy(
      runVerb(`releasing the name ${quoted(name)}`, [name], scope, async () => {
        if (await isMoveTarget(ctx, name, scope)) return;
        if (await ctx.tryTakeOverTorn(name)) await files.unlink(metaPath(name));
      }),
    );
  }
}

/** Removes the released records of volumes that have been adopted again. */
async function removeReadoptedRecords({ storeRoot, read }: VerbContext): Promise<void> {
  for (const entry of await storeRoot.files.names(storeRoot.ownPath('retained'))) {
    const path = storeRoot.ownPath('retained', entry);
    const released = await readMeta(storeRoot.files, path, storeRoot.context.instance);
    if (released.state !== 'ok') continue;
    const current = await read(released.meta.name);
    if (current.state === 'ok' && current.meta.id === released.meta.id) await storeRoot.files.unlink(path);
  }
}
