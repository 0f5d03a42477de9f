import { randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import type { Source, VolumeId, VolumeName } from '#core/model.ts';
import { volumeNotEmpty } from '#core/volume-errors.ts';
import { dataUnusable } from './errors.ts';
import type { Files } from './files.ts';
import type { DataPaths, Layout } from './layout.ts';
import type { StoreRoot } from './store-root.ts';

export interface DirectoryLayoutParts {
  readonly storeRoot: StoreRoot;
  readonly clock: Clock;
  /** Makes a complete directory, with its owner and mode, appear at `path` in one step. Fails with `EEXIST` if something is there. */
  make(path: string): Promise<void>;
  source(path: string, volume: Parameters<Layout['source']>[1]): Source | Promise<Source>;
  /** Present if the clients that mount volumes can enforce their sizes: the quota records for that. */
  readonly quotas?: Quotas | undefined;
  readonly paths?: DataPaths | undefined;
}

export interface Quotas {
  /** Raises the quota for all clients that have the volume mounted. */
  raise(id: VolumeId, bytes: bigint): Promise<void>;
  forget(id: VolumeId): Promise<void>;
}

export function createDirectoryLayout(parts: DirectoryLayoutParts): Layout {
  const { storeRoot, clock, make, source, paths, quotas } = parts;
  const { files } = storeRoot;
  return {
    kind: 'directory',
    suffix: '',
    trashName: 'data',
    access: ['filesystem'],
    enforcesCapacity: false,
    canEnforce: quotas !== undefined,
    opaque: false,
    ...(paths === undefined ? {} : { paths }),
    refuseUnsupported: (bytes, access) => {
      if (bytes !== undefined && bytes < 0n) throw negative(bytes);
      if (access === 'block') throw noBlock(storeRoot);
    },
    make: (_want, path) => make(path),
    discard: (path, id) => discard(storeRoot, path, id),
    discardIfEmpty: (path, { name }) => discardIfEmpty(storeRoot, path, name),
    unsuitableBecause: ({ type }) =>
      type === 'directory' ? undefined : type === 'link' ? 'is a symbolic link' : 'is not a directory',
    grow: async (_path, { id, enforce }, bytes) => {
      if (enforce) await quotas?.raise(id, bytes);
    },
    source: async (path, volume) => source(path, volume),
    ...(quotas === undefined ? {} : { removeQuota: quotas.forget }),
    usage: async (path, _meta, scope) => {
      if ((await files.lstat(path))?.type !== 'directory') throw dataUnusable(path, path, 'is not a directory');
      const scanned = await files.scan(path, scope.signal);
      return { ...scanned, empty: scanned.complete && scanned.files === 0n, measuredAt: clock.now() };
    },
    isStore: (path) => isStore(files, path),
    inspectData: async (path) => ({
      ...((await isStore(files, path)) ? { reason: 'it is a store itself: it contains .stowage' } : {}),
      access: 'filesystem',
    }),
  };
}

async function isStore(files: Files, path: string): Promise<boolean> {
  try {
    return (await files.lstat(`${path}/.stowage`)) !== undefined;
  } catch (cause) {
    // EACCES: a directory that this user may not read is not a store of theirs. ENOTDIR: a file has replaced the directory.
    if (isErrno(cause, 'EACCES', 'ENOTDIR')) return false;
    throw cause;
  }
}

function negative(bytes: bigint): StowageError {
  return new StowageError(`a volume cannot have ${bytes} bytes`, {
    code: 'out-of-range',
    reason: 'size-out-of-range',
    action: 'Use a size of at least 0.',
  });
}

function noBlock(storeRoot: StoreRoot): StowageError {
  return new StowageError(`store ${storeRoot.store} keeps volumes as directories, so it has no block devices`, {
    code: 'unsupported',
    reason: 'access-unsupported',
    action: 'Use a local store with layout=image for block volumes.',
  });
}

/** Removes an empty volume in one call. Moves any other to where `reclaim` finds it. A planted link is moved itself, not its target. */
async function discard({ files, ownPath }: StoreRoot, path: string, id: string): Promise<void> {
  try {
    return await files.rmdir(path);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return;
    // Some NFS servers report a directory that is not empty as EIO.
    if (!isErrno(cause, 'ENOTEMPTY', 'EEXIST', 'ENOTDIR', 'EIO')) throw cause;
  }
  try {
    await files.rename(path, ownPath('deleting', id));
  } catch (cause) {
    // `deleting/` still has the remains of an interrupted deletion of the same volume.
    if (!isErrno(cause, 'ENOTEMPTY', 'EEXIST', 'ENOTDIR', 'EISDIR', 'EIO')) throw cause;
    await files.rename(path, ownPath('deleting', `${id}.${randomBytes(6).toString('hex')}`));
  }
}

/** Never renames: only rmdir fails if a program has written to the volume since the check found it empty. */
async function discardIfEmpty({ files, store }: StoreRoot, path: string, name: VolumeName): Promise<void> {
  const found = await files.lstat(path);
  if (found === undefined) return;
  // Check the type first, because on some NFS servers RMDIR also removes files.
  if (found.type !== 'directory') throw dataUnusable(name, path, 'is not a directory');
  try {
    await files.rmdir(path);
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return;
    if (isErrno(cause, 'ENOTDIR')) throw dataUnusable(name, path, 'is not a directory');
    // Some NFS servers report a directory that is not empty as EIO. A failing disk gives the same error.
    const isFull =
      isErrno(cause, 'ENOTEMPTY', 'EEXIST') || (isErrno(cause, 'EIO') && (await files.list(path)).length > 0);
    throw isFull ? volumeNotEmpty({ store, name }) : cause;
  }
}
