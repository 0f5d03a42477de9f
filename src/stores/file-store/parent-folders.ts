import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Meta } from './meta.ts';
import { recordedPaths } from './nested-data.ts';
import type { VerbContext } from './verb-context.ts';

/** Tells a folder that holds volumes from a volume. No volume can have this name. */
const marker = '.stowage-folder';
const folderMode = 0o755;
const markerText = 'Stowage keeps volumes in this folder.\n';

/** The folders a volume's data lie in, the uppermost first. */
function parentsOf({ storeRoot }: VerbContext, { path }: Pick<Meta, 'path'>): string[] {
  const names = path?.split('/').slice(0, -1) ?? [];
  return names.map((_, i) => `${storeRoot.root}/${names.slice(0, i + 1).join('/')}`);
}

/** Never inside what is, or may be, another volume's data. */
export async function makeParents(ctx: VerbContext, meta: Meta, scope: Scope): Promise<void> {
  for (const folder of parentsOf(ctx, meta)) {
    if (await isParentFolder(ctx, folder)) continue;
    if (!(await tryCreateFolder(ctx, folder)) && !(await isLeftUnmarked(ctx, folder, scope))) throw occupied(folder);
    await mark(ctx, folder);
  }
}

async function tryCreateFolder({ storeRoot }: VerbContext, folder: string): Promise<boolean> {
  try {
    await storeRoot.files.newFolder(folder, folderMode);
    return true;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return false;
    throw cause;
  }
}

/** A crash came between making and marking it, or another host is about to: it is empty, and no volume's data. */
async function isLeftUnmarked(ctx: VerbContext, folder: string, scope: Scope): Promise<boolean> {
  if ((await ctx.storeRoot.files.lstat(folder))?.type !== 'directory') return false;
  const names = await ctx.storeRoot.files.names(folder);
  return names.every((name) => name === marker) && !(await recordedPaths(ctx, scope)).has(folder);
}

/** Of data that are taken in where they are: their folders hold volumes from now on. */
export async function markParents(ctx: VerbContext, meta: Meta): Promise<void> {
  for (const folder of parentsOf(ctx, meta)) if (!(await isParentFolder(ctx, folder))) await mark(ctx, folder);
}

async function mark({ storeRoot }: VerbContext, folder: string): Promise<void> {
  await storeRoot.files.writeNew(`${folder}/${marker}`, markerText).catch((cause: unknown) => {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  });
}

/** A folder that Stowage made to hold volumes. */
export async function isParentFolder({ storeRoot }: VerbContext, folder: string): Promise<boolean> {
  try {
    return (await storeRoot.files.lstat(`${folder}/${marker}`)) !== undefined;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'EACCES')) return false;
    throw cause;
  }
}

/** Folders that the volume was the last in go with it. */
export async function pruneParents(ctx: VerbContext, meta: Meta): Promise<void> {
  const { files } = ctx.storeRoot;
  for (const folder of parentsOf(ctx, meta).reverse()) {
    try {
      if ((await files.names(folder)).some((name) => name !== marker)) return;
      await files.unlink(`${folder}/${marker}`);
      await files.rmdir(folder);
    } catch (cause) {
      // Another volume came to lie in it meanwhile; without its mark the folder would be taken for a volume.
      if (isErrno(cause, 'ENOTEMPTY', 'EEXIST'))
        await files.writeNew(`${folder}/${marker}`, markerText).catch(() => undefined);
      return;
    }
  }
}

function occupied(folder: string): StowageError {
  return new StowageError(`${folder} holds something already, so volumes cannot be made inside it`, {
    code: 'exists',
    reason: 'folder-occupied',
    action: 'Choose other labels or another name; or move away what is there; or change the path of the store.',
  });
}
