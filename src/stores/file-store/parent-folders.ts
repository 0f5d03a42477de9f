import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Meta } from './meta.ts';
import { recordedPaths } from './nested-data.ts';
import type { Parts } from './verb-context.ts';

/** Tells a folder that holds volumes from a volume. No volume can have this name. */
const marker = '.stowage-folder';
const folderMode = 0o755;
const markerText = 'Stowage keeps volumes in this folder.\n';

/** The folders a volume's data lie in, the uppermost first. */
function parentsOf({ storeRoot }: Parts, { path }: Pick<Meta, 'path'>): string[] {
  const names = path?.split('/').slice(0, -1) ?? [];
  return names.map((_, i) => `${storeRoot.root}/${names.slice(0, i + 1).join('/')}`);
}

/** Never inside what is, or may be, another volume's data. */
export async function makeParents(parts: Parts, meta: Meta, scope: Scope): Promise<void> {
  for (const folder of parentsOf(parts, meta)) {
    if (await isFolder(parts, folder)) continue;
    if (!(await isNew(parts, folder)) && !(await isLeftUnmarked(parts, folder, scope))) throw occupied(folder);
    await mark(parts, folder);
  }
}

async function isNew({ storeRoot }: Parts, folder: string): Promise<boolean> {
  try {
    await storeRoot.files.newFolder(folder, folderMode);
    return true;
  } catch (cause) {
    if (isErrno(cause, 'EEXIST')) return false;
    throw cause;
  }
}

/** A crash came between making and marking it, or another host is about to: it is empty, and no volume's data. */
async function isLeftUnmarked(parts: Parts, folder: string, scope: Scope): Promise<boolean> {
  if ((await parts.storeRoot.files.look(folder))?.type !== 'directory') return false;
  const names = await parts.storeRoot.files.names(folder);
  return names.every((name) => name === marker) && !(await recordedPaths(parts, scope)).has(folder);
}

/** Of data that are taken in where they are: their folders hold volumes from now on. */
export async function markParents(parts: Parts, meta: Meta): Promise<void> {
  for (const folder of parentsOf(parts, meta)) if (!(await isFolder(parts, folder))) await mark(parts, folder);
}

async function mark({ storeRoot }: Parts, folder: string): Promise<void> {
  await storeRoot.files.writeNew(`${folder}/${marker}`, markerText).catch((cause: unknown) => {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  });
}

/** A folder that Stowage made to hold volumes. */
export async function isFolder({ storeRoot }: Parts, folder: string): Promise<boolean> {
  try {
    return (await storeRoot.files.look(`${folder}/${marker}`)) !== undefined;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ENOTDIR', 'EACCES')) return false;
    throw cause;
  }
}

/** Folders that the volume was the last in go with it. */
export async function pruneParents(parts: Parts, meta: Meta): Promise<void> {
  const { files } = parts.storeRoot;
  for (const folder of parentsOf(parts, meta).reverse()) {
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
