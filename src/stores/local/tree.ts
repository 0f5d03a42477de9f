import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, lstat, open, opendir, rename, rmdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { eachBounded } from '#base/each-bounded.ts';
import { errnoOf, isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import type { Unremovable } from '../file-store/files.ts';
import { openRawDirectory } from './raw-entries.ts';
import { maxFileCallsPerLongCall } from './slots-by-device.ts';

const maxConcurrentTrees = 2;
const maxConcurrentEntries = maxFileCallsPerLongCall / maxConcurrentTrees;
/** Retries for a directory that a program with an open handle keeps refilling. */
const maxAttempts = 3;
// Not in node:fs; the value is the same on every architecture Node runs Linux on.
const O_PATH = 0o10000000;

/**
 * Removes the contents of `folder`, a directory that only this user can change. Other programs may still be changing the trees inside it (a
 * container with an open handle, swapping a directory for a symbolic link).
 *
 * It never descends: it first renames a subdirectory that is not empty into `folder`. So other programs can replace only the last component of
 * a path that it uses, and unlink, rmdir and rename never follow a link there. A mount inside a tree can't be renamed (EBUSY), so nothing is
 * ever removed from another file system. Depth costs neither descriptors nor path length, and the work can stop at any point.
 *
 * Returns the entries that it could not remove. It keeps nothing else in memory, because a tree may have more directories than fit.
 */
export async function emptyFolder(folder: string, scope: Scope): Promise<readonly Unremovable[]> {
  const refilled = new Map<string, number>();
  const unremovable = new Map<string, string>();
  const prefix = `part-${randomBytes(6).toString('hex')}-`;
  let movedCount = 0;
  const moveUp = (at: string | Buffer): Promise<void> => rename(at, join(folder, `${prefix}${++movedCount}`));

  async function removeOne(name: string): Promise<void> {
    const path = join(folder, name);
    let failure: unknown;
    try {
      if ((await lstat(path)).isDirectory()) {
        failure = await emptyDirectory(path, scope.signal, moveUp);
        await rmdir(path);
      } else await unlink(path);
      refilled.delete(name);
    } catch (cause) {
      scope.signal.throwIfAborted();
      const code = errnoOf(cause);
      if (code === 'ENOENT') return;
      const count = (refilled.get(name) ?? 0) + 1;
      if (code === 'ENOTEMPTY' && count < maxAttempts && failure === undefined) {
        refilled.set(name, count);
        return;
      }
      refilled.delete(name);
      const why = String(failure ?? cause);
      unremovable.set(name, why);
      scope.log.warn('deleted data could not be removed', { path, cause: why });
    }
  }

  async function* remaining(): AsyncGenerator<string> {
    for await (const { name } of await opendir(folder, { bufferSize: 256 })) if (!unremovable.has(name)) yield name;
  }

  for (;;) {
    scope.signal.throwIfAborted();
    let seen = 0;
    await eachBounded(remaining(), maxConcurrentTrees, async (name) => {
      scope.signal.throwIfAborted();
      seen++;
      await removeOne(name);
    });
    // The listing of this round may or may not contain the directories that were moved up during it.
    if (seen === 0) return Array.from(unremovable, ([name, why]) => ({ name, why }));
  }
}

/** Empties one directory of the folder. Returns the first error of an entry that could not be removed. */
async function emptyDirectory(
  directory: string,
  signal: AbortSignal,
  moveUp: (at: string | Buffer) => Promise<void>,
): Promise<unknown> {
  const base = Buffer.from(`${directory}/`);
  let failure: unknown;
  const list = await withAccess(directory, () => openRawDirectory(base));
  await eachBounded(list, maxConcurrentEntries, async (entry) => {
    signal.throwIfAborted();
    const path = Buffer.concat([base, entry.name]);
    try {
      await withAccess(directory, () => (entry.isDirectory() ? removeDirectory(path, moveUp) : unlink(path)));
    } catch (cause) {
      // EISDIR, ENOTDIR: the entry was replaced after the listing. The next round sees its new type.
      if (!isErrno(cause, 'ENOENT', 'EISDIR', 'ENOTDIR')) failure ??= cause;
    }
  });
  return failure;
}

async function removeDirectory(path: Buffer, moveUp: (at: Buffer) => Promise<void>): Promise<void> {
  try {
    await rmdir(path);
  } catch (cause) {
    if (!isErrno(cause, 'ENOTEMPTY', 'EEXIST')) throw cause;
    // Moving a directory elsewhere rewrites its '..', which needs permission to write to the directory itself.
    await withAccess(path, () => moveUp(path));
  }
}

/** An ordinary user owns these directories, but their mode may deny access. */
async function withAccess<T>(directory: string | Buffer, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    if (!isErrno(cause, 'EACCES') || process.platform !== 'linux') throw cause;
  }
  // O_PATH opens unreadable directories too, and O_NOFOLLOW keeps chmod from changing a link's target.
  const handle = await open(directory, O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    await chmod(`/proc/self/fd/${handle.fd}`, 0o700);
  } finally {
    await handle.close();
  }
  return work();
}
