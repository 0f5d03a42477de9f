import type { Scope } from '#base/log.ts';
import type { Inspection, VolumeName } from '#core/model.ts';
import { isVolumeName, quoted } from '#core/names.ts';
import type { ChangedByOthers } from '#core/ports.ts';
import { dataUnusable } from './errors.ts';
import { hasMoved } from './finish-interrupted.ts';
import type { Meta } from './meta.ts';
import type { Parts } from './verb-context.ts';
import type { FileStore } from './verbs.ts';

const readsAtOnce = 16;
const recordOf = /^(.*)\.meta$/;

/** Names of the records in a listing of the root. Whether they can be read is another matter. */
export function recordedNames(entries: readonly string[]): VolumeName[] {
  return entries.flatMap((entry) => {
    const name = recordOf.exec(entry)?.[1];
    return name !== undefined && isVolumeName(name) ? [name] : [];
  });
}

/** For a store that others work on too. */
export function createMarks({ storeRoot, during }: Parts): Required<ChangedByOthers> {
  return {
    marks: (scope) =>
      during('listing volumes', [], scope, async () => {
        const marks = new Map((await storeRoot.files.list(storeRoot.root)).map(({ name, mark = '' }) => [name, mark]));
        return new Map(recordedNames([...marks.keys()]).map((name) => [name, marks.get(`${name}.meta`) ?? '']));
      }),
  };
}

export function createReading(parts: Parts): Pick<FileStore, 'get' | 'list' | 'names' | 'source' | 'usage'> {
  const { storeRoot, layout, during, dataPath, held, volume } = parts;
  const { files } = storeRoot;
  const names = (scope: Scope): Promise<readonly VolumeName[]> =>
    during('listing volumes', [], scope, async () => recordedNames(await files.names(storeRoot.root)));

  return {
    names,
    get: (name, scope) =>
      during(`reading volume ${quoted(name)}`, [], scope, async () => {
        const read = await parts.read(name);
        if (read.state === 'absent') return undefined;
        if (read.state === 'ok') return inspect(parts, read.meta);
        // Cut off: being made or taken at this moment, by another host perhaps, or never finished. Nobody was told of it.
        const isNobodys = storeRoot.others !== undefined || (await files.look(dataPath({ name }))) === undefined;
        if (read.state === 'torn' && isNobodys) return undefined;
        throw read.error;
      }),
    list: async function* (scope) {
      const all = await names(scope);
      for (let i = 0; i < all.length; i += readsAtOnce) {
        scope.signal.throwIfAborted();
        const some = all.slice(i, i + readsAtOnce);
        const reads = await Promise.all(
          some.map((name) => during('listing volumes', [], scope, () => parts.read(name))),
        );
        for (const read of reads) if (read.state === 'ok') yield volume(read.meta);
      }
    },
    source: (ref, scope) =>
      // Held, as finding it may have to finish what was half done with it.
      during(`locating volume ${quoted(ref.name)}`, [ref.name, ref.id], scope, async (at) => {
        const meta = await held(ref, at);
        return layout.source(await usable(parts, meta), meta);
      }),
    usage: async (ref, scope) => {
      const doing = `measuring volume ${quoted(ref.name)}`;
      const [path, meta] = await during(doing, [ref.name, ref.id], scope, async (at) => {
        const found = await held(ref, at);
        return [await usable(parts, found), found] as const;
      });
      // Not held: measuring takes as long as the volume is large.
      return during(doing, [], scope, () => layout.usage(path, meta, scope), 'long');
    },
  };
}

/** The path of data that are there and are what they should be. */
export async function usable({ storeRoot, layout, dataPath }: Parts, meta: Meta): Promise<string> {
  const path = dataPath(meta);
  const found = await storeRoot.files.look(path);
  const wrong = found === undefined ? 'does not exist' : layout.wrongWith(found);
  if (wrong !== undefined) throw dataUnusable(meta.name, path, wrong);
  return path;
}

export async function inspect(parts: Parts, meta: Meta): Promise<Inspection> {
  const path = parts.dataPath(meta);
  const volume = parts.volume(meta);
  const found = await parts.storeRoot.files.look(path);
  const wrong = found === undefined ? 'does not exist' : parts.layout.wrongWith(found);
  if (wrong === undefined) return { volume, condition: 'ok', ...unobvious(parts, path, meta.name) };
  const moved = meta.movingTo !== undefined && (await hasMoved(parts, meta, meta.movingTo));
  if (moved) return { volume, condition: 'ok', detail: `it is being renamed to ${meta.movingTo}` };
  return { volume, condition: 'missing', detail: `${path} ${wrong}`, ...unobvious(parts, path, meta.name) };
}

/** The path of data that are not where their name says. */
export function unobvious({ storeRoot, layout }: Parts, path: string, name: string): Pick<Inspection, 'path'> {
  const below = path.slice(storeRoot.root.length).replace(/^\//, '');
  return below === `${name}${layout.suffix}` ? {} : { path: below };
}
