import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, lstat, open, opendir, rename, rmdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { eachBounded } from '#base/each-bounded.ts';
import { errnoOf, isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import type { Unremovable } from '../file-store/files.ts';
import { openRaw } from './raw-entries.ts';
import { fileCallsPerLongCall } from './slots-by-device.ts';

const treesAtOnce = 2;
const entriesAtOnce = fileCallsPerLongCall / treesAtOnce;
/** Something may still be writing through an open handle; it gets this many chances to lose the race. */
const attempts = 3;
// Not in node:fs; the value is the same on every architecture Node runs Linux on.
const O_PATH = 0o10000000;

/**
 * Removes what lies in `folder`, a directory that only this user can change, while others may still be changing the
 * trees inside it (a container with an open handle, swapping a directory for a symbolic link).
 *
 * It never descends: a subdirectory that is not empty is first renamed up into `folder`. So every path used here has
 * exactly one component somebody else could replace, the last one, and unlink, rmdir and rename never follow that. A
 * mount inside a tree refuses to be renamed (EBUSY), so nothing is ever removed from another file system. Depth costs
 * neither descriptors nor path length, and stopping anywhere loses nothing.
 *
 * Gives what it had to leave. Nothing else is remembered: a tree may have more directories than memory has room for.
 */
export async function emptyFolder(folder: string, scope: Scope): Promise<readonly Unremovable[]> {
  const refilled = new Map<string, number>();
  const left = new Map<string, string>();
  const prefix = `part-${randomBytes(6).toString('hex')}-`;
  let parts = 0;
  const moveUp = (at: string | Buffer): Promise<void> => rename(at, join(folder, `${prefix}${++parts}`));

  async function removeOne(name: string): Promise<void> {
    const at = join(folder, name);
    let refused: unknown;
    try {
      if ((await lstat(at)).isDirectory()) {
        refused = await emptyDirectory(at, scope.signal, moveUp);
        await rmdir(at);
      } else await unlink(at);
      refilled.delete(name);
    } catch (cause) {
      scope.signal.throwIfAborted();
      const code = errnoOf(cause);
      if (code === 'ENOENT') return;
      const count = (refilled.get(name) ?? 0) + 1;
      if (code === 'ENOTEMPTY' && count < attempts && refused === undefined) {
        refilled.set(name, count);
        return;
      }
      refilled.delete(name);
      const why = String(refused ?? cause);
      left.set(name, why);
      scope.log.warn('could not remove deleted data', { path: at, cause: why });
    }
  }

  async function* remaining(): AsyncGenerator<string> {
    for await (const { name } of await opendir(folder, { bufferSize: 256 })) if (!left.has(name)) yield name;
  }

  for (;;) {
    scope.signal.throwIfAborted();
    let seen = 0;
    await eachBounded(remaining(), treesAtOnce, async (name) => {
      scope.signal.throwIfAborted();
      seen++;
      await removeOne(name);
    });
    // What was moved up during the round may or may not have been in its listing.
    if (seen === 0) return Array.from(left, ([name, why]) => ({ name, why }));
  }
}

/** Empties one directory of the folder, and gives the first reason why something in it could not be removed. */
async function emptyDirectory(
  directory: string,
  signal: AbortSignal,
  moveUp: (at: string | Buffer) => Promise<void>,
): Promise<unknown> {
  const base = Buffer.from(`${directory}/`);
  let refused: unknown;
  const list = await withAccess(directory, () => openRaw(base));
  await eachBounded(list, entriesAtOnce, async (entry) => {
    signal.throwIfAborted();
    const at = Buffer.concat([base, entry.name]);
    try {
      await withAccess(directory, () => (entry.isDirectory() ? removeDirectory(at, moveUp) : unlink(at)));
    } catch (cause) {
      // EISDIR, ENOTDIR: it was replaced since it was listed; the next round sees what it is now.
      if (!isErrno(cause, 'ENOENT', 'EISDIR', 'ENOTDIR')) refused ??= cause;
    }
  });
  return refused;
}

async function removeDirectory(at: Buffer, moveUp: (at: Buffer) => Promise<void>): Promise<void> {
  try {
    await rmdir(at);
  } catch (cause) {
    if (!isErrno(cause, 'ENOTEMPTY', 'EEXIST')) throw cause;
    // Moving a directory elsewhere rewrites its '..', which needs permission to write to the directory itself.
    await withAccess(at, () => moveUp(at));
  }
}

/** An ordinary user owns these directories but may have been shut out by their mode. */
async function withAccess<T>(directory: string | Buffer, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    if (!isErrno(cause, 'EACCES') || process.platform !== 'linux') throw cause;
  }
  // O_PATH opens even what may not be read, and O_NOFOLLOW keeps chmod off a link's target.
  const handle = await open(directory, O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    await chmod(`/proc/self/fd/${handle.fd}`, 0o700);
  } finally {
    await handle.close();
  }
  return work();
}
