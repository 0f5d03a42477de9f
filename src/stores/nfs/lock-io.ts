import { type Attributes, type FileHandle, isGone, isNfsError, type NfsClient, type Time } from '#wire/nfs3/index.ts';
import type { Folders } from './folders.ts';
import type { GuardTicksParts } from './guard-ticks.ts';
import { ctimeOf, type LockIo } from './lock-file.ts';
import { asSystemError } from './system-error.ts';

export interface LockIoParts {
  readonly nfs: NfsClient;
  readonly folders: Folders;
  readonly deadlineMs: number;
  /** A folder of the store whose ctime nothing depends on. */
  readonly ownFolder: string;
}

/** Retries while other hosts change the folder between two calls of ours. */
const maxProbes = 8;

export function createLockIo({ nfs, folders, deadlineMs, ownFolder }: LockIoParts): LockIo & GuardTicksParts {
  const limits = { deadlineMs };

  const attributes: LockIo['attributes'] = async (handle) => {
    try {
      return await nfs.getattr(handle, limits);
    } catch (cause) {
      if (isGone(cause)) return undefined;
      throw asSystemError(cause);
    }
  };

  const setattr: LockIo['setattr'] = async (handle, set, ifChangedAt) => {
    try {
      const { after } = await nfs.setattr(handle, set, { ...limits, ifChangedAt });
      return after ?? (await attributes(handle)) ?? 'gone';
    } catch (cause) {
      if (isNfsError(cause, 'NOT_SYNC')) return 'changed';
      if (isGone(cause)) return 'gone';
      throw asSystemError(cause);
    }
  };

  /** Needs no free space. */
  async function touchFolder(folder: FileHandle, ifChangedAt?: Time): Promise<Attributes> {
    const guard = ifChangedAt === undefined ? {} : { ifChangedAt };
    const { after } = await nfs.setattr(folder, { mtime: 'now' }, { ...limits, ...guard });
    return after ?? (await nfs.getattr(folder, limits));
  }

  return {
    attributes,
    setattr,
    find: (path) =>
      folders.inParent(path, async (folder, name) => {
        try {
          const found = await nfs.lookup(folder, name, limits);
          return { handle: found.handle, attributes: found.attributes ?? (await nfs.getattr(found.handle, limits)) };
        } catch (cause) {
          if (isNfsError(cause, 'NOENT')) return undefined;
          throw cause;
        }
      }),
    create: (path, mark) =>
      folders.inParent(path, async (folder, name) => {
        const exclusive = { mode: 'guarded', set: { mode: 0o600, atime: mark, mtime: mark } } as const;
        const created = await nfs.create(folder, name, exclusive, limits);
        return {
          handle: created.handle,
          attributes: created.attributes ?? (await nfs.getattr(created.handle, limits)),
        };
      }),
    remove: (path) =>
      folders.inParent(path, async (folder, name) => {
        await nfs.remove(folder, name, limits).catch((cause: unknown) => {
          if (!isNfsError(cause, 'NOENT')) throw cause;
        });
      }),
    comparesNanoseconds: () =>
      folders.inFolder(ownFolder, async (folder) => {
        for (let probe = 0; probe < maxProbes; probe++) {
          const before = ctimeOf(await touchFolder(folder));
          try {
            await touchFolder(folder, { ...before, nanoseconds: before.nanoseconds ^ 1 });
            return false;
          } catch (cause) {
            if (!isNfsError(cause, 'NOT_SYNC')) throw cause;
          }
          // The nanoseconds alone made the guard fail, unless another host changed the folder at the same time.
          const now = ctimeOf(await nfs.getattr(folder, limits));
          if (now.seconds === before.seconds && now.nanoseconds === before.nanoseconds) return true;
        }
        return false;
      }),
  };
}
