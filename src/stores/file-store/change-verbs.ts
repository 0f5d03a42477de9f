import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeName, VolumeRef } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { AdoptionFacet, Enforcement, Store } from '#core/ports.ts';
import { dataUnrecorded } from './errors.ts';
import { isRefusal } from './files.ts';
import { isMoving, type Meta, sameLabels, settled } from './meta.ts';
import { pruneParents } from './parent-folders.ts';
import { usable } from './read-verbs.ts';
import { takeName } from './take-name.ts';
import type { HeldScope, Limit, Parts } from './verb-context.ts';
import type { FileStore } from './verbs.ts';

type Verbs = 'delete' | 'rename' | 'label' | 'expand';

const called = (verb: string, name: string): string => `${verb} volume ${quoted(name)}`;

type Changing = (
  doing: string,
  ref: VolumeRef,
  scope: Scope,
  work: (meta: Meta, change: (to: Partial<Meta>) => Promise<Volume>) => Promise<Volume> | Volume,
) => Promise<Volume>;

const createChanging =
  (parts: Parts): Changing =>
  (doing, ref, scope, work) => {
    const { storeRoot, during, held, volume } = parts;
    return during(doing, [ref.name, ref.id], scope, async (at) => {
      const meta = await held(ref, at);
      return work(meta, async (to) => {
        const next = { ...settled(meta, meta.name), ...to, revision: meta.revision + 1 };
        await storeRoot.replace(storeRoot.metaPath(meta.name), next, at.limit.check);
        return volume(next);
      });
    });
  };

/** Only recorded here: who mounts the volume keeps to it. */
export function createEnforce(parts: Parts): Required<Pick<Enforcement, 'enforce'>> {
  const changing = createChanging(parts);
  return {
    enforce: (ref, scope) =>
      changing(called('enforcing the size of', ref.name), ref, scope, (meta, change) =>
        meta.enforce ? parts.volume(meta) : change({ enforce: true }),
      ),
  };
}

/** Also in a full store: what was mounted before can be, too. The revision is of what users see, and stays. */
export function createNoteUse(parts: Parts): Pick<Required<Store>, 'noteUse'> {
  const { storeRoot, during, held } = parts;
  return {
    noteUse: (ref, scope) =>
      during(called('noting the use of', ref.name), [ref.name, ref.id], scope, (at) =>
        storeRoot.reserve.backing(async () => {
          const { unused, ...used } = await held(ref, at);
          if (unused === true)
            await storeRoot.replace(storeRoot.metaPath(used.name), settled(used, used.name), at.limit.check);
        }),
      ),
  };
}

export function createVolumes(parts: Parts): Pick<FileStore, Verbs> {
  const { storeRoot, layout, during, emptying, dataPath, volume } = parts;
  const { files } = storeRoot;
  const changing = createChanging(parts);

  return {
    delete: (ref, scope, { onlyIfEmpty = false } = {}) =>
      emptying(
        called('deleting', ref.name),
        ref,
        scope,
        async (meta, { limit }) => {
          // An intent that was given up must not be found when the data are gone from here: they could seem to be elsewhere.
          if (isMoving(meta))
            await storeRoot.replace(storeRoot.metaPath(meta.name), settled(meta, meta.name), limit.check);
          limit.check();
          if (onlyIfEmpty) {
            await layout.discardIfEmpty(dataPath(meta), meta);
            await parts.forgetQuota(meta);
          } else await layout.discard(dataPath(meta), meta.id);
          limit.check();
          await files.unlink(storeRoot.metaPath(meta.name));
          await storeRoot.sync();
          storeRoot.others?.forget(meta.id, 'gone');
          await pruneParents(parts, meta);
        },
        { keepsQuota: onlyIfEmpty },
      ),
    rename: (ref, to, scope) =>
      during(called('renaming', ref.name), [ref.name, to, ref.id], scope, (at) => move(parts, ref, to, at)),
    label: (ref, labels, scope) =>
      changing(called('labelling', ref.name), ref, scope, (meta, change) =>
        sameLabels(meta.labels, labels) ? volume(meta) : change({ labels }),
      ),
    expand: (ref, bytes, scope) =>
      changing(called('expanding', ref.name), ref, scope, async (meta, change) => {
        if (meta.bytes !== undefined && bytes < meta.bytes) throw shrinking(meta, bytes);
        layout.refuse(bytes, meta.access);
        // Data first: a record that promises more than there is would be wrong, the other way round is only generous.
        await layout.grow(await usable(parts, meta), meta, bytes, scope);
        return meta.bytes === bytes ? volume(meta) : change({ bytes });
      }),
  };
}

export function createRelease(parts: Parts): Pick<AdoptionFacet, 'release' | 'claim'> {
  const { storeRoot, emptying, volume } = parts;
  const changing = createChanging(parts);

  return {
    release: (ref, scope) =>
      emptying(called('releasing', ref.name), ref, scope, async (meta, { limit }) => {
        // Outside the root the file's name no longer tells the volume's: the record itself must, and a name it had
        // before it was renamed, or an abandoned intent, must not.
        await storeRoot.replace(storeRoot.metaPath(meta.name), settled(meta, meta.name), limit.check);
        limit.check();
        await storeRoot.files.rename(storeRoot.metaPath(meta.name), storeRoot.own('retained', `${meta.id}.meta`));
        await storeRoot.sync();
      }),
    claim: (ref, instance, scope) =>
      changing(called('claiming', ref.name), ref, scope, (meta, change) =>
        meta.instance === instance ? volume(meta) : change({ instance }),
      ),
  };
}

async function move(parts: Parts, ref: VolumeRef, to: VolumeName, scope: HeldScope): Promise<Volume> {
  const { storeRoot, dataPath, volume } = parts;
  const target = await parts.read(to);
  if (target.state === 'ok' && target.meta.id === ref.id) return volume(target.meta);
  const meta = await parts.held(ref, scope);
  // `held` has just finished the move that an earlier call began.
  if (meta.name === to) return volume(meta);
  await parts.refuseUsed(meta, 'renamed');
  const moving: Meta = { ...settled(meta, meta.name), movingTo: to, revision: meta.revision + 1 };
  const taken = await takeName(parts, to, target, scope);
  try {
    const home = meta.path === undefined ? dataPath({ name: to }) : undefined;
    // A rename would silently replace an empty directory.
    if (home !== undefined && (await storeRoot.files.look(home)) !== undefined)
      throw dataUnrecorded(to, home, storeRoot.store);
    await carry(parts, meta, moving, home, taken);
  } catch (cause) {
    await taken.giveBack(cause);
    throw cause;
  }
  taken.check();
  await storeRoot.files.rename(storeRoot.metaPath(meta.name), storeRoot.metaPath(to));
  await storeRoot.sync();
  return volume(settled(moving, to));
}

/** The intent, and then the data. `home` undefined: they stay where they are. */
async function carry(
  { storeRoot, dataPath }: Parts,
  meta: Meta,
  moving: Meta,
  home: string | undefined,
  limit: Limit,
): Promise<void> {
  const record = storeRoot.metaPath(meta.name);
  try {
    await storeRoot.replace(record, moving, limit.check);
    limit.check();
    if (home !== undefined) await storeRoot.files.rename(dataPath(meta), home);
  } catch (cause) {
    if (storeRoot.others === undefined || isRefusal(cause)) await storeRoot.replace(record, meta, limit.check);
    throw cause;
  }
}

function shrinking(meta: Meta, bytes: bigint): StowageError {
  return new StowageError(`volume ${quoted(meta.name)} has ${meta.bytes} bytes and cannot shrink to ${bytes}`, {
    code: 'out-of-range',
    reason: 'volume-would-shrink',
    action: 'Ask for at least its present size, or make a smaller volume and copy the data.',
  });
}
