import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { VolumeId } from '#core/model.ts';
import { isVolumeId } from '#core/names.ts';
import { ignoreBusy } from './finish-interrupted.ts';
import { recordedNames } from './read-verbs.ts';
import { trashedId } from './trash-names.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;
/** Each removal reads all records once more. */
const maxRemovedPerSweep = 16;

/**
 * Removes lock files of volumes that no longer exist. A late host re-created them, or a host died before it removed them. Only the
 * records show which ones, so we read the records when there are more lock files than volumes.
 */
export async function removeOrphanedLocks(ctx: VerbContext, scope: Scope): Promise<void> {
  const { storeRoot } = ctx;
  const { files, hostLocks } = storeRoot;
  if (hostLocks === undefined) return;
  const locks = (await files.names(storeRoot.ownPath('locks'))).filter(isVolumeId);
  const trashed = new Set((await files.names(storeRoot.ownPath('trash'))).map(trashedId));
  const retained = new Set(await files.names(storeRoot.ownPath('retained')));
  const candidates = locks.filter((id) => !trashed.has(id) && !retained.has(`${id}.meta`));
  const names = recordedNames(await files.names(storeRoot.root));
  if (candidates.length <= names.length) return;
  const known = new Set<string>();
  let unreadable = 0;
  await eachBounded(names, maxConcurrentReads, async (name) => {
    scope.signal.throwIfAborted();
    const read = await ctx.read(name);
    if (read.state === 'ok') known.add(read.meta.id);
    if (read.state === 'unreadable') unreadable++;
  });
  if (unreadable > 0) return;
  for (const id of candidates.filter((each) => !known.has(each)).slice(0, maxRemovedPerSweep))
    await ignoreBusy(removeLock(ctx, id, scope));
}

async function removeLock(ctx: VerbContext, id: VolumeId, scope: Scope): Promise<void> {
  const { hostLocks } = ctx.storeRoot;
  if (hostLocks === undefined || (await hostLocks.holderOf(id)) !== 'nobody') return;
  await ctx.withVolumeLock(id, scope, async (held) => {
    // The volume's record may have moved while we read the other records.
    if (await ctx.hasNoRecord(id, held)) hostLocks.forget(id, 'gone');
  });
}
