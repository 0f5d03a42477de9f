import type { Scope } from '#base/log.ts';
import type { Inspection, VolumeName } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import type { ChangedByOthers } from '#core/ports.ts';
import { dataUnusable } from './errors.ts';
import { hasDataMoved } from './finish-interrupted.ts';
import type { Meta } from './meta.ts';
import type { VerbContext } from './verb-context.ts';
import type { FileStore } from './verbs.ts';

const maxConcurrentReads = 16;
const recordPattern = /^(.*)\.meta$/;

/** Names of the records in a listing of the root, readable or not. */
export function recordedNames(entries: readonly string[]): VolumeName[] {
  return entries.flatMap((entry) => {
    const name = recordPattern.exec(entry)?.[1];
    return name !== undefined && isVolumeName(name) ? [name] : [];
  });
}

/** For a store that other hosts change too. */
export function createChangeMarks({ storeRoot, runVerb }: VerbContext): Required<ChangedByOthers> {
  return {
    revisions: (scope) =>
      runVerb('listing volumes', [], scope, async () => {
        const marks = new Map((await storeRoot.files.list(storeRoot.root)).map(({ name, mark = '' }) => [name, mark]));
        return new Map(recordedNames([...marks.keys()]).map((name) => [name, marks.get(`${name}.meta`) ?? '']));
      }),
  };
}

export function createReadVerbs(ctx: VerbContext): Pick<FileStore, 'get' | 'list' | 'names' | 'source' | 'usage'> {
  const { storeRoot, layout, runVerb, dataPath, findOrThrow, volume } = ctx;
  const { files } = storeRoot;
  const names = (scope: Scope): Promise<readonly VolumeName[]> =>
    runVerb('listing volumes', [], scope, async () => recordedNames(await files.names(storeRoot.root)));

  return {
    names,
    get: (name, scope) =>
      runVerb(`reading volume ${quoted(name)}`, [], scope, async () => {
        const read = await ctx.read(name);
        if (read.state === 'absent') return undefined;
        if (read.state === 'ok') return inspect(ctx, read.meta);
        // Truncated: a host is creating it or taking the name right now, or never finished. No call has reported that it exists.
        const isNoVolume = storeRoot.hostLocks !== undefined || (await files.lstat(dataPath({ name }))) === undefined;
        if (read.state === 'torn' && isNoVolume) return undefined;
        throw read.error;
      }),
    list: async function* (scope) {
      const all = await names(scope);
      for (let i = 0; i < all.length; i += maxConcurrentReads) {
        scope.signal.throwIfAborted();
        const batch = all.slice(i, i + maxConcurrentReads);
        const reads = await Promise.all(
          batch.map((name) => runVerb('listing volumes', [], scope, () => ctx.read(name))),
        );
        for (const read of reads) if (read.state === 'ok') yield volume(read.meta);
      }
    },
    source: (ref, scope) =>
      // Under the locks, because finding the volume may have to finish an interrupted operation.
      runVerb(`locating volume ${quoted(ref.name)}`, [ref.name, ref.id], scope, async (held) => {
        const meta = await findOrThrow(ref, held);
        return layout.source(await usableDataPath(ctx, meta), meta);
      }),
    usage: async (ref, scope) => {
      const doing = `measuring volume ${quoted(ref.name)}`;
      const [path, meta] = await runVerb(doing, [ref.name, ref.id], scope, async (held) => {
        const found = await findOrThrow(ref, held);
        return [await usableDataPath(ctx, found), found] as const;
      });
      // Without locks: measuring a large volume takes long.
      return runVerb(doing, [], scope, () => layout.usage(path, meta, scope), 'long');
    },
  };
}

/** The path of the volume's data. Throws if they are missing or of the wrong type. */
export async function usableDataPath({ storeRoot, layout, dataPath }: VerbContext, meta: Meta): Promise<string> {
  const path = dataPath(meta);
  const found = await storeRoot.files.lstat(path);
  const wrong = found === undefined ? 'does not exist' : layout.unsuitableBecause(found);
  if (wrong !== undefined) throw dataUnusable(meta.name, path, wrong);
  return path;
}

export async function inspect(ctx: VerbContext, meta: Meta): Promise<Inspection> {
  const path = ctx.dataPath(meta);
  const volume = ctx.volume(meta);
  const found = await ctx.storeRoot.files.lstat(path);
  const wrong = found === undefined ? 'does not exist' : ctx.layout.unsuitableBecause(found);
  if (wrong === undefined) return { volume, condition: 'ok', ...pathIfUnusual(ctx, path, meta.name) };
  const moved = meta.movingTo !== undefined && (await hasDataMoved(ctx, meta, meta.movingTo));
  if (moved) return { volume, condition: 'ok', detail: `it is being renamed to ${meta.movingTo}` };
  return { volume, condition: 'missing', detail: `${path} ${wrong}`, ...pathIfUnusual(ctx, path, meta.name) };
}

/** The path of the data, if it is not the one that follows from the volume's name. */
export function pathIfUnusual(
  { storeRoot, layout }: VerbContext,
  path: string,
  name: string,
): Pick<Inspection, 'path'> {
  const below = path.slice(storeRoot.root.length).replace(/^\//, '');
  return below === `${name}${layout.suffix}` ? {} : { path: below };
}
