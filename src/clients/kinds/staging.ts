import { mkdirSync, rmdirSync } from 'node:fs';
import { lstat, open, unlink } from 'node:fs/promises';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Access } from '#core/model.ts';
import { resolveOwnParents, resolveParents, undefinedIfMissing } from '../mounter/paths.ts';

/** Creates the mount point for a staged volume if it is missing. Returns its path as the mount table shows it. */
export async function makeStage(at: string, access: Access): Promise<string> {
  const mountPoint = resolveOwnParents(at);
  if (mountPoint === undefined) {
    throw new StowageError(`${at} cannot be created: the folder for mounts is missing`, {
      code: 'unavailable',
      reason: 'mounts-folder-missing',
      action: 'Restart Stowage: it creates the folder when it starts.',
    });
  }
  try {
    // The mounted file system has its own permissions; until then no other user may use the mount point.
    if (access === 'filesystem') mkdirSync(mountPoint, { mode: 0o700 });
    else await (await open(mountPoint, 'wx', 0o600)).close();
  } catch (cause) {
    if (!isErrno(cause, 'EEXIST')) throw cause;
  }
  return mountPoint;
}

/** Keeps and logs a mount point that is not empty: something was written there while nothing was mounted. */
export async function removeStage(mountPoint: string, scope: Scope): Promise<void> {
  try {
    // Synchronous, and without a stat: rmdir fails on a mount point without contacting its server.
    if (tryRemoveFolder(mountPoint)) return;
    const found = await undefinedIfMissing(lstat(mountPoint));
    if (found?.size === 0) await unlink(mountPoint);
  } catch (cause) {
    if (!isErrno(cause, 'ENOENT'))
      scope.log.warn('failed to remove the mount point of a stage', { at: mountPoint, why: String(cause) });
  }
}

/** False: it is a file. */
function tryRemoveFolder(mountPoint: string): boolean {
  try {
    rmdirSync(mountPoint);
    return true;
  } catch (cause) {
    if (isErrno(cause, 'ENOTDIR')) return false;
    throw cause;
  }
}

/** Locates the volume's data. Never follows a symbolic link, which could lead anywhere on this machine. */
export async function locateSource(path: string, kind: 'folder' | 'file'): Promise<{ path: string; bytes: number }> {
  const location = await resolveParents(path);
  const found = location === undefined ? undefined : await undefinedIfMissing(lstat(location));
  if (location === undefined || found === undefined) {
    throw new StowageError(`the volume's data are missing: there is no ${path}`, {
      code: 'not-found',
      reason: 'data-missing',
      action: 'Restore the data, or delete the volume. To see what else is missing: stowage store check',
    });
  }
  if (kind === 'folder' ? found.isDirectory() : found.isFile()) return { path: location, bytes: found.size };
  throw new StowageError(`the volume's data were replaced: ${path} is not a ${kind}`, {
    code: 'conflict',
    reason: 'data-wrong-kind',
    action: `Restore the ${kind} at ${path}.`,
  });
}
