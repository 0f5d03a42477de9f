import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Meta } from './meta.ts';
import { recordedPaths } from './nested-data.ts';
import type { VerbContext } from './verb-context.ts';

/** Marks a folder that holds volumes, to distinguish it from a volume. No volume can have this name. */
const marker = '.stowage-folder';
const folderMode = 0o755;
const markerText = 'Stowage keeps volumes in this folder.\n';

/** The folders above a volume's data, the uppermost first. */
function parentsOf({ storeRoot }: VerbContext, { path }: Pick<Meta, 'path'>): string[] {
  const names = path?.split('/').slice(0, -1) ?? [];
  return names.map((_, i) => `${storeRoot.root}/${names.slice(0, i + 1).join('/')}`);
}

/** Never makes a folder inside something that is, or may be, another volume's data. */
export async function makeParents(ctx: VerbContext, meta: Meta, scope: Scope): Promise<void> {
  for (const folder of parentsOf(ctx, meta)) {
    if (await isParentFolder(ctx, folder)) continue;
    if (!(await tryCreateFolder(ctx, folder)) && !(await isLeftUnmarked(ctx, folder, scope)))
      throw folderOccupied(folder);
    await markFolder(ctx, folder);
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

/** Whether a crash came before the folder was marked, or another host is about to mark it: it is empty, and no volume's data. */
async function isLeftUnmarked(ctx: VerbContext, folder: string, scope: Scope): Promise<boolean> {
  if ((await ctx.storeRoot.files.lstat(folder))?.type !== 'directory') return false;
  const names = await ctx.storeRoot.files.names(folder);
  return names.every((name) => name === marker) && !(await recordedPaths(ctx, scope)).has(folder);
}

/** For data that are adopted in place: marks the folders above them. */
export async function markParents(ctx: VerbContext, meta: Meta): Promise<void> {
  for (const folder of parentsOf(ctx, meta)) if (!(await isParentFolder(ctx, folder))) await markFolder(ctx, folder);
}

async function markFolder({ storeRoot }: VerbContext, folder: string): Promise<void> {
  await storeRoot.files.writeNew(`${folder}/${marker}`, markerText).catch((cause: unknown) => {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  });
}

/** Whether Stowage made or marked the folder to hold volumes. */
export async function isParentFolder({ storeRoot }: VerbContext, folder: string): Promise<boolean> {
  try {
    return (await storeRoot.files.lstat(`${folder}/${marker}`)) !== undefined;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'EACCES')) return false;
    throw cause;
  }
}

/** Removes the folders that held only this volume. */
export async function pruneParents(ctx: VerbContext, meta: Meta): Promise<void> {
  const { files } = ctx.storeRoot;
  for (const folder of parentsOf(ctx, meta).reverse()) {
    try {
      if ((await files.names(folder)).some((name) => name !== marker)) return;
      await files.unlink(`${folder}/${marker}`);
      await files.rmdir(folder);
    } catch (cause) {
      // Another volume was created in it in the meantime. Without the marker the folder would look like a volume.
      if (isErrno(cause, 'ENOTEMPTY', 'EEXIST'))
        await files.writeNew(`${folder}/${marker}`, markerText).catch(() => undefined);
      return;
    }
  }
}

function folderOccupied(folder: string): StowageError {
  return new StowageError(`${folder} is already in use, so volumes cannot be created inside it`, {
    code: 'exists',
    reason: 'folder-occupied',
    action: 'Choose other labels or another name; or move the folder away; or change the path of the store.',
  });
}
