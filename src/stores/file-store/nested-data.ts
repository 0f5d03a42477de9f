import { eachBounded } from '#base/each-bounded.ts';
import type { Scope } from '#base/log.ts';
import type { Labels, VolumeName } from '#core/model.ts';
import { recordedNames } from './read-verbs.ts';
import type { VerbContext } from './verb-context.ts';

const maxConcurrentReads = 16;

/** A directory where the store's rule for paths would have put a volume. */
export interface NestedData {
  readonly path: string;
  readonly name: VolumeName;
  readonly labels: Labels;
}

/** Finds unrecorded data in folders, at exactly the depth of the store's path template. */
export async function findNestedData(ctx: VerbContext, scope: Scope): Promise<readonly NestedData[]> {
  const { storeRoot } = ctx;
  const { paths } = ctx.layout;
  if (paths === undefined || paths.depth < 2) return [];
  const taken = await recordedPaths(ctx, scope);
  const found: NestedData[] = [];

  async function scanFolder(path: string, levels: number): Promise<void> {
    scope.signal.throwIfAborted();
    for (const { name, type } of await storeRoot.files.list(`${storeRoot.root}${path === '' ? '' : `/${path}`}`)) {
      if (type !== 'directory' || name.startsWith('.stowage')) continue;
      const childPath = path === '' ? name : `${path}/${name}`;
      // The contents of a volume belong to its users.
      if (taken.has(`${storeRoot.root}/${childPath}`)) continue;
      if (levels > 1) await scanFolder(childPath, levels - 1);
      else {
        const volume = paths?.volumeAt(childPath);
        if (volume !== undefined) found.push({ ...volume, path: childPath });
      }
    }
  }

  await scanFolder('', paths.depth);
  return found;
}

/** Paths of the volumes' data, according to their records. */
export async function recordedPaths(ctx: VerbContext, scope: Scope): Promise<ReadonlySet<string>> {
  const found = new Set<string>();
  await eachBounded(
    recordedNames(await ctx.storeRoot.files.names(ctx.storeRoot.root)),
    maxConcurrentReads,
    async (name) => {
      scope.signal.throwIfAborted();
      const read = await ctx.read(name);
      found.add(ctx.dataPath(read.state === 'ok' ? read.meta : { name }));
    },
  );
  return found;
}

/** Nested data that would become the volume `name`, unless the root itself has data of that name. */
export async function findNestedByName(
  ctx: VerbContext,
  name: VolumeName,
  scope: Scope,
): Promise<NestedData | undefined> {
  if ((await ctx.storeRoot.files.lstat(ctx.dataPath({ name }))) !== undefined) return undefined;
  return (await findNestedData(ctx, scope)).find((one) => one.name === name);
}
