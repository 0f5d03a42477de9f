import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Labels, VolumeName, VolumeSpec } from '#core/model.ts';
import { isVolumeName, quoted, volumeName } from '#core/names.ts';
import type { Adoptable, AdoptionFacet } from '#core/ports.ts';
import { newMeta } from './create.ts';
import { nameTaken, notFound } from './errors.ts';
import type { Entry } from './files.ts';
import { hasDataMoved } from './finish-interrupted.ts';
import type { HoldLimit } from './held-scope.ts';
import type { Meta } from './meta.ts';
import { readMeta } from './meta.ts';
import { findNestedByName, findNestedData, type NestedData } from './nested-data.ts';
import { isParentFolder, markParents } from './parent-folders.ts';
import { recordedNames } from './read-verbs.ts';
import type { StoreRoot } from './store-root.ts';
import { takeName } from './take-name.ts';
import { trashedId } from './trash-names.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;
/** The reason for a folder that holds volumes of a path template. */
export const holdsVolumes = 'it holds volumes';

export function createAdopt(ctx: VerbContext): Pick<AdoptionFacet, 'adoptable' | 'adopt'> {
  const { storeRoot, layout, runVerb, dataPath, volume } = ctx;
  return {
    adoptable: (scope) => runVerb('looking for data to adopt', [], scope, () => findAdoptable(ctx, scope), 'long'),
    adopt: (name, spec, scope) =>
      runVerb(`adopting ${quoted(name)}`, [name], scope, async (held) => {
        const read = await ctx.read(name);
        if (read.state === 'ok') {
          if (read.meta.requestId !== spec.requestId) throw nameTaken(name, storeRoot.store);
          return volume(read.meta);
        }
        const isReservedOnly = read.state === 'torn' && storeRoot.hostLocks !== undefined;
        if (read.state !== 'absent' && !isReservedOnly) throw read.error;
        if (isReservedOnly && (await isMoveTarget(ctx, name, scope))) throw nameTaken(name, storeRoot.store);
        const released = await findReleased(storeRoot, name);
        const nested = released[0] === undefined ? await findNestedByName(ctx, name, scope) : undefined;
        const found = await requireAdoptable({ name, ...pathOf(released[0]?.meta ?? nested) });
        const meta =
          released[0] === undefined ? adoptedMeta(name, spec, found, nested) : readoptedMeta(released[0].meta, spec);
        await markParents(ctx, meta);
        // No volume is locked, so only the limit of the name counts. Finding the data may have taken long.
        const taken = await takeName(ctx, name, read, { ...held, limit: ctx.limit() });
        try {
          await record(meta, released[0]?.path, taken);
        } catch (cause) {
          await taken.release(cause);
          throw cause;
        }
        // Older released records of that name belong to data that have since been replaced.
        for (const { path } of released.slice(1)) await storeRoot.files.unlink(path);
        return volume(meta);
      }),
  };

  /**
   * Writes the record in one step. Otherwise a crash could leave an empty record beside data, which no host can attribute to a volume, or
   * two records of a released volume.
   */
  async function record(meta: Meta, released: string | undefined, limit: HoldLimit): Promise<void> {
    const path = storeRoot.metaPath(meta.name);
    if (released === undefined) return storeRoot.replaceRecord(path, meta, limit.check);
    await storeRoot.replaceRecord(released, meta, limit.check);
    limit.check();
    if (!(await storeRoot.files.rename(released, path))) throw notFound(meta.name, storeRoot.store);
    await storeRoot.sync();
  }

  async function requireAdoptable(
    data: Pick<Meta, 'name' | 'path'>,
  ): Promise<{ readonly bytes?: bigint; readonly access: Meta['access'] }> {
    const path = dataPath(data);
    const fileInfo = await storeRoot.files.lstat(path);
    if (fileInfo === undefined) throw notFound(data.name, storeRoot.store);
    const wrong = (await isParentFolder(ctx, path)) ? 'holds volumes' : layout.unsuitableBecause(fileInfo);
    const inspection =
      wrong === undefined ? await layout.inspectData(path) : { reason: `it ${wrong}`, access: 'filesystem' as const };
    if (inspection.reason === undefined) return inspection;
    throw new StowageError(`${path} cannot become a volume: ${inspection.reason}`, {
      code: 'conflict',
      reason: 'not-adoptable',
      action: `List what can be adopted with: stowage store adopt ${storeRoot.store}`,
    });
  }
}

function adoptedMeta(
  name: VolumeName,
  spec: VolumeSpec,
  found: { readonly bytes?: bigint; readonly access: Meta['access'] },
  nested: NestedData | undefined,
): Meta {
  const labels = { ...nested?.labels, ...spec.labels };
  return newMeta({ ...spec, name, labels, bytes: spec.bytes ?? found.bytes, access: found.access }, nested?.path);
}

/** Drops the id of the request that created the volume: a retry of that request must not find an adopted volume. */
function readoptedMeta(
  meta: Meta,
  spec: { readonly requestId: string; readonly instance: string; readonly labels: Labels },
): Meta {
  const { requestId, instance } = spec;
  // The data may have changed while the volume was released.
  const { unused: _unused, ...rest } = meta;
  return { ...rest, requestId, instance, revision: meta.revision + 1 };
}

const pathOf = (meta: Pick<Meta, 'path'> | undefined): Pick<Meta, 'path'> =>
  meta?.path === undefined ? {} : { path: meta.path };

/** Whether the empty record reserves the name for a volume that a host was renaming or restoring when it died. */
export async function isMoveTarget(ctx: VerbContext, name: VolumeName, scope: Scope): Promise<boolean> {
  let isTarget = false;
  const { storeRoot } = ctx;
  const recorded = recordedNames(await storeRoot.files.names(storeRoot.root));
  const trashed = (await storeRoot.files.names(storeRoot.ownPath('trash'))).filter(
    (entry) => trashedId(entry) !== undefined,
  );
  const all = [
    ...recorded.map((one) => [storeRoot.metaPath(one), ctx.dataPath({ name: one })] as const),
    ...trashed.map(
      (entry) =>
        ['meta', ctx.layout.trashName].map((part) => storeRoot.ownPath('trash', entry, part)) as [string, string],
    ),
  ];
  await eachBounded(all, maxConcurrentReads, async ([path, data]) => {
    scope.signal.throwIfAborted();
    const read = await readMeta(storeRoot.files, path, storeRoot.context.instance);
    if (read.state !== 'ok' || read.meta.movingTo !== name || (await storeRoot.files.lstat(data)) !== undefined) return;
    isTarget ||= await hasDataMoved(ctx, read.meta, name);
  });
  return isTarget;
}

/** Newest first. */
async function findReleased(
  storeRoot: StoreRoot,
  name?: VolumeName,
): Promise<readonly { readonly path: string; readonly meta: Meta }[]> {
  const found: { path: string; meta: Meta; changedAt: number }[] = [];
  for (const entry of await storeRoot.files.names(storeRoot.ownPath('retained'))) {
    const path = storeRoot.ownPath('retained', entry);
    const read = await readMeta(storeRoot.files, path, storeRoot.context.instance);
    if (read.state !== 'ok' || (name !== undefined && read.meta.name !== name)) continue;
    // The release moved the record here, which was its last change.
    found.push({ path, meta: read.meta, changedAt: (await storeRoot.files.lstat(path))?.changedAt ?? 0 });
  }
  return found.sort((a, b) => b.changedAt - a.changedAt);
}

/** Everything in the root that is neither a record nor the data of a recorded volume. */
export async function findAdoptable(ctx: VerbContext, scope: Scope): Promise<readonly Adoptable[]> {
  const { storeRoot, layout } = ctx;
  const entries = await storeRoot.files.list(storeRoot.root);
  // On a shared store an empty record only reserves a name. Adoption checks whether a host still needs it.
  const mayBeVolume = ({ name, isEmpty }: Entry): boolean =>
    !(isEmpty === true && storeRoot.hostLocks && name.endsWith('.meta'));
  const all = new Set(entries.filter(mayBeVolume).map((entry) => entry.name));
  const nested = await findNestedData(ctx, scope);
  const folders = new Set(nested.map(({ path }) => path.split('/')[0]));
  const found: Adoptable[] = [];
  for (const entry of entries) {
    const file = entry.name;
    if (file === '.stowage' || folders.has(file) || (file.endsWith('.meta') && entry.type !== 'directory')) continue;
    const name = file.endsWith(layout.suffix) ? file.slice(0, file.length - layout.suffix.length) : file;
    if (all.has(`${name}.meta`) && file === `${name}${layout.suffix}`) continue;
    const reason = file.endsWith(layout.suffix)
      ? await whyNotAdoptable(entry, name, ctx)
      : `it is not a ${layout.suffix} file`;
    found.push(reason === undefined ? { name } : { name: file, reason });
  }
  for (const { name, path } of nested)
    if (!all.has(`${name}.meta`) && !(await isParentFolder(ctx, `${storeRoot.root}/${path}`))) found.push({ name });
  const adoptableNames = new Set(found.map(({ name }) => name));
  for (const { meta } of await findReleased(storeRoot)) {
    const isNested = meta.path !== undefined && !all.has(`${meta.name}.meta`) && !adoptableNames.has(meta.name);
    if (isNested && (await storeRoot.files.lstat(ctx.dataPath(meta))) !== undefined) found.push({ name: meta.name });
  }
  return found;
}

async function whyNotAdoptable(entry: Entry, name: string, ctx: VerbContext): Promise<string | undefined> {
  const { storeRoot, layout } = ctx;
  const path = `${storeRoot.root}/${entry.name}`;
  if (name === 'lost+found') return 'it belongs to the file system';
  if (entry.type === 'link') return 'it is a symbolic link';
  if (layout.kind === 'directory' && entry.type !== 'directory') return 'it is not a directory';
  if (layout.kind === 'image' && entry.type !== 'file') return 'it is not a plain file';
  if (!isVolumeName(name)) return whyInvalidName(name);
  if (await isParentFolder(ctx, path)) return holdsVolumes;
  return (await layout.inspectData(path)).reason;
}

function whyInvalidName(name: string): string {
  try {
    volumeName(name);
    return '';
  } catch (cause) {
    return cause instanceof Error ? cause.message : String(cause);
  }
}
