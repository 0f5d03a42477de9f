import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeName, VolumeRef } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { AdoptionFacet, Enforcement, Store } from '#core/ports.ts';
import { dataUnrecorded } from './errors.ts';
import { isDefiniteFailure } from './files.ts';
import type { HeldScope, HoldLimit } from './held-scope.ts';
import { hasMoveIntent, type Meta, sameLabels, withoutMove } from './meta.ts';
import { pruneParents } from './parent-folders.ts';
import { usableDataPath } from './read-verbs.ts';
import { takeName } from './take-name.ts';
import type { VerbContext } from './verb-context.ts';
import type { FileStore } from './verbs.ts';

type ChangeVerb = 'delete' | 'rename' | 'label' | 'expand';

const describe = (verb: string, name: string): string => `${verb} volume ${quoted(name)}`;

type RecordUpdate = (
  doing: string,
  ref: VolumeRef,
  scope: Scope,
  work: (meta: Meta, change: (to: Partial<Meta>) => Promise<Volume>) => Promise<Volume> | Volume,
) => Promise<Volume>;

const createRecordUpdate =
  (ctx: VerbContext): RecordUpdate =>
  (doing, ref, scope, work) => {
    const { storeRoot, runVerb, findOrThrow, volume } = ctx;
    return runVerb(doing, [ref.name, ref.id], scope, async (held) => {
      const meta = await findOrThrow(ref, held);
      return work(meta, async (to) => {
        const next = { ...withoutMove(meta, meta.name), ...to, revision: meta.revision + 1 };
        await storeRoot.replaceRecord(storeRoot.metaPath(meta.name), next, held.limit.check);
        return volume(next);
      });
    });
  };

/** Only records it: the client that mounts the volume enforces the size. */
export function createEnforce(ctx: VerbContext): Required<Pick<Enforcement, 'enforce'>> {
  const updateRecord = createRecordUpdate(ctx);
  return {
    enforce: (ref, scope) =>
      updateRecord(describe('enforcing the size of', ref.name), ref, scope, (meta, change) =>
        meta.enforce ? ctx.volume(meta) : change({ enforce: true }),
      ),
  };
}

/** Works in a full store too, so that volumes can still be mounted. Keeps the revision, which counts changes that users see. */
export function createNoteUse(ctx: VerbContext): Pick<Required<Store>, 'markUsed'> {
  const { storeRoot, runVerb, findOrThrow } = ctx;
  return {
    markUsed: (ref, scope) =>
      runVerb(describe('recording the use of', ref.name), [ref.name, ref.id], scope, (at) =>
        storeRoot.reserve.retryWithReserve(async () => {
          const { unused, ...used } = await findOrThrow(ref, at);
          if (unused === true)
            await storeRoot.replaceRecord(storeRoot.metaPath(used.name), withoutMove(used, used.name), at.limit.check);
        }),
      ),
  };
}

export function createChangeVerbs(ctx: VerbContext): Pick<FileStore, ChangeVerb> {
  const { storeRoot, layout, runVerb, runRemoval, dataPath, volume } = ctx;
  const { files } = storeRoot;
  const updateRecord = createRecordUpdate(ctx);

  return {
    delete: (ref, scope, { onlyIfEmpty = false } = {}) =>
      runRemoval(
        describe('deleting', ref.name),
        ref,
        scope,
        async (meta, { limit }) => {
          // Remove an abandoned intent first: once the data are gone from here, it could point to other data.
          if (hasMoveIntent(meta))
            await storeRoot.replaceRecord(storeRoot.metaPath(meta.name), withoutMove(meta, meta.name), limit.check);
          limit.check();
          if (onlyIfEmpty) {
            await layout.discardIfEmpty(dataPath(meta), meta);
            await ctx.removeQuota(meta);
          } else await layout.discard(dataPath(meta), meta.id);
          limit.check();
          await files.unlink(storeRoot.metaPath(meta.name));
          await storeRoot.sync();
          storeRoot.hostLocks?.forget(meta.id, 'gone');
          await pruneParents(ctx, meta);
        },
        { keepsQuota: onlyIfEmpty },
      ),
    rename: (ref, to, scope) =>
      runVerb(describe('renaming', ref.name), [ref.name, to, ref.id], scope, (held) =>
        renameVolume(ctx, ref, to, held),
      ),
    label: (ref, labels, scope) =>
      updateRecord(describe('labelling', ref.name), ref, scope, (meta, change) =>
        sameLabels(meta.labels, labels) ? volume(meta) : change({ labels }),
      ),
    expand: (ref, bytes, scope) =>
      updateRecord(describe('expanding', ref.name), ref, scope, async (meta, change) => {
        if (meta.bytes !== undefined && bytes < meta.bytes) throw wouldShrink(meta, bytes);
        layout.refuseUnsupported(bytes, meta.access);
        // Grow the data first: the record must never promise more than there is.
        await layout.grow(await usableDataPath(ctx, meta), meta, bytes, scope);
        return meta.bytes === bytes ? volume(meta) : change({ bytes });
      }),
  };
}

export function createRelease(ctx: VerbContext): Pick<AdoptionFacet, 'release' | 'claim'> {
  const { storeRoot, runRemoval, volume } = ctx;
  const updateRecord = createRecordUpdate(ctx);

  return {
    release: (ref, scope) =>
      runRemoval(describe('releasing', ref.name), ref, scope, async (meta, { limit }) => {
        // Outside the root the file is named by id. So the record itself must have the volume's current name and no abandoned intent.
        await storeRoot.replaceRecord(storeRoot.metaPath(meta.name), withoutMove(meta, meta.name), limit.check);
        limit.check();
        await storeRoot.files.rename(storeRoot.metaPath(meta.name), storeRoot.ownPath('retained', `${meta.id}.meta`));
        await storeRoot.sync();
      }),
    claim: (ref, instance, scope) =>
      updateRecord(describe('claiming', ref.name), ref, scope, (meta, change) =>
        meta.instance === instance ? volume(meta) : change({ instance }),
      ),
  };
}

async function renameVolume(ctx: VerbContext, ref: VolumeRef, to: VolumeName, scope: HeldScope): Promise<Volume> {
  const { storeRoot, dataPath, volume } = ctx;
  const target = await ctx.read(to);
  if (target.state === 'ok' && target.meta.id === ref.id) return volume(target.meta);
  const meta = await ctx.findOrThrow(ref, scope);
  // `findOrThrow` has just finished the rename that an earlier call began.
  if (meta.name === to) return volume(meta);
  await ctx.refuseIfUsed(meta, 'renamed');
  const moving: Meta = { ...withoutMove(meta, meta.name), movingTo: to, revision: meta.revision + 1 };
  const taken = await takeName(ctx, to, target, scope);
  try {
    const newDataPath = meta.path === undefined ? dataPath({ name: to }) : undefined;
    // A rename would silently replace an empty directory.
    if (newDataPath !== undefined && (await storeRoot.files.lstat(newDataPath)) !== undefined)
      throw dataUnrecorded(to, newDataPath, storeRoot.store);
    await moveData(ctx, meta, moving, newDataPath, taken);
  } catch (cause) {
    await taken.release(cause);
    throw cause;
  }
  taken.check();
  await storeRoot.files.rename(storeRoot.metaPath(meta.name), storeRoot.metaPath(to));
  await storeRoot.sync();
  return volume(withoutMove(moving, to));
}

/** Writes the intent, then moves the data. `home` undefined: the data stay where they are. */
async function moveData(
  { storeRoot, dataPath }: VerbContext,
  meta: Meta,
  moving: Meta,
  newDataPath: string | undefined,
  limit: HoldLimit,
): Promise<void> {
  const record = storeRoot.metaPath(meta.name);
  try {
    await storeRoot.replaceRecord(record, moving, limit.check);
    limit.check();
    if (newDataPath !== undefined) await storeRoot.files.rename(dataPath(meta), newDataPath);
  } catch (cause) {
    if (storeRoot.hostLocks === undefined || isDefiniteFailure(cause))
      await storeRoot.replaceRecord(record, meta, limit.check);
    throw cause;
  }
}

function wouldShrink(meta: Meta, bytes: bigint): StowageError {
  return new StowageError(`volume ${quoted(meta.name)} has ${meta.bytes} bytes and cannot shrink to ${bytes}`, {
    code: 'out-of-range',
    reason: 'volume-would-shrink',
    action: 'Request at least the current size, or create a smaller volume and copy the data.',
  });
}
