import { chmod, chown, lstat, mkdir, rename, rmdir } from 'node:fs/promises';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import { isFull } from '../file-store/files.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import type { LocalOptions } from './options.ts';

/** Returns a function that creates a directory with the owner and mode of the options. */
export async function createDirectoryMaker(
  options: LocalOptions,
  storeRoot: StoreRoot,
  readOnly: boolean,
): Promise<(path: string) => Promise<void>> {
  // Decided once: if mkdir alone gives the right owner and mode, one call makes a complete volume.
  if (readOnly || (await mkdirSuffices(options, storeRoot)))
    return async (path) => {
      await mkdir(path, { mode: options.mode });
    };
  return async (path) => {
    // Set owner and mode before the directory gets the volume's name.
    const scratch = storeRoot.scratchPath();
    await mkdir(scratch, { mode: 0o700 });
    try {
      await setOwnerAndMode(scratch, options);
      await rename(scratch, path);
    } catch (cause) {
      await rmdir(scratch).catch(() => undefined);
      throw cause;
    }
  };
}

async function setOwnerAndMode(path: string, { uid, gid, mode }: LocalOptions): Promise<void> {
  // -1 keeps the owner. chown before chmod, since chown clears set-id bits.
  if (uid !== undefined || gid !== undefined) await chown(path, uid ?? -1, gid ?? -1);
  await chmod(path, mode);
}

/** Creates a directory to find out, because the umask, the parent's set-gid bit and default ACLs all affect the result. */
async function mkdirSuffices(options: LocalOptions, storeRoot: StoreRoot): Promise<boolean> {
  const probe = storeRoot.scratchPath();
  try {
    await mkdir(probe, { mode: options.mode });
  } catch (cause) {
    // A full store must still open, so that volumes can be deleted.
    if (isFull(cause)) return false;
    throw cause;
  }
  try {
    const { uid, gid, mode } = await lstat(probe);
    const hasOwner = (options.uid ?? uid) === uid && (options.gid ?? gid) === gid;
    if (hasOwner && (mode & 0o7777) === options.mode) return true;
    await setOwnerAndMode(probe, options);
    return false;
  } catch (cause) {
    if (!isErrno(cause, 'EPERM')) throw cause;
    const owner = (['uid', 'gid'] as const).flatMap((key) =>
      options[key] === undefined ? [] : [`${key} ${options[key]}`],
    );
    throw new StowageError(
      `store ${storeRoot.store} cannot create volumes owned by ${owner.join(' and ')}: this user may not change the owner of files`,
      {
        code: 'denied',
        reason: 'owner-denied',
        action: "Run Stowage as root, or remove the store's options uid and gid.",
        cause,
      },
    );
  } finally {
    await rmdir(probe);
  }
}
