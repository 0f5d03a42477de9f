import { randomBytes } from 'node:crypto';
import { chmod, chown, lstat, mkdir, rename, rmdir } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { StowageError } from '#core/errors.ts';
import { dataUnusable, errno, isFull } from './errors.ts';
import { lstatIfThere, renameIfThere } from './files.ts';
import type { Layout } from './layout.ts';
import type { LocalOptions } from './options.ts';
import type { Place } from './place.ts';
import { scanTree } from './scan.ts';

export async function createDirectoryLayout(
  options: LocalOptions,
  place: Place,
  clock: Clock,
  readOnly: boolean,
): Promise<Layout> {
  // Decided once: where mkdir alone gives the wanted owner and mode, one call makes a complete volume.
  const plain = readOnly || (await mkdirSuffices(options, place));

  async function make(path: string): Promise<void> {
    if (plain) return mkdir(path, { mode: options.mode }).then(() => undefined);
    // Complete before it is visible: what has the volume's name has its owner and mode too.
    const scratch = place.scratch();
    await mkdir(scratch, { mode: 0o700 });
    try {
      await dress(scratch, options);
      await rename(scratch, path);
    } catch (cause) {
      await rmdir(scratch).catch(() => undefined);
      throw cause;
    }
  }

  return {
    ...{ kind: 'directory', suffix: '', trashName: 'data', access: ['filesystem'] },
    ...{ enforcesCapacity: false, needsSize: false },
    refuse: (bytes, access) => {
      if (bytes !== undefined && bytes < 0n) throw negative(bytes);
      if (access === 'block') throw noBlock(place);
    },
    make: (_want, path) => make(path),
    discard: (path, id) => discard(place, path, id),
    wrongWith: (stat) =>
      stat.isDirectory() ? undefined : stat.isSymbolicLink() ? 'is a symbolic link' : 'is not a directory',
    grow: async () => undefined,
    source: async (path) => ({ kind: 'directory', node: place.context.node, path }),
    usage: async (path, scope) => {
      const there = await lstat(path);
      if (!there.isDirectory()) throw dataUnusable(path, path, 'is not a directory');
      return { ...(await scanTree(path, scope.signal)), measuredAt: clock.now() };
    },
    isStore,
    appraise: async (path) => ({
      ...((await isStore(path)) ? { reason: 'it is a store itself: it contains .stowage' } : {}),
      access: 'filesystem',
    }),
  };
}

async function isStore(path: string): Promise<boolean> {
  try {
    return (await lstatIfThere(`${path}/.stowage`)) !== undefined;
  } catch (cause) {
    // What this user may not look into is no store of theirs; what was replaced by a file is none at all.
    if (errno(cause) === 'EACCES' || errno(cause) === 'ENOTDIR') return false;
    throw cause;
  }
}

function negative(bytes: bigint): StowageError {
  return new StowageError(`a volume cannot have ${bytes} bytes`, {
    code: 'out-of-range',
    reason: 'size-out-of-range',
    action: 'Give a size of at least 0.',
  });
}

function noBlock(place: Place): StowageError {
  return new StowageError(`store ${place.store} keeps volumes as directories, so it has no block devices`, {
    code: 'unsupported',
    reason: 'access-unsupported',
    action: 'Use a store with layout=image for block volumes.',
  });
}

async function dress(path: string, { uid, gid, mode }: LocalOptions): Promise<void> {
  // -1 leaves it as it is; chown before chmod, since chown clears set-id bits.
  if (uid !== undefined || gid !== undefined) await chown(path, uid ?? -1, gid ?? -1);
  await chmod(path, mode);
}

/** Tried rather than computed: the umask, the parent's set-gid bit and default ACLs all have a say. */
async function mkdirSuffices(options: LocalOptions, place: Place): Promise<boolean> {
  const probe = place.scratch();
  try {
    await mkdir(probe, { mode: options.mode });
  } catch (cause) {
    // A full store must still open: volumes can be deleted.
    if (isFull(cause)) return false;
    throw cause;
  }
  try {
    const { uid, gid, mode } = await lstat(probe);
    const owned = (options.uid ?? uid) === uid && (options.gid ?? gid) === gid;
    if (owned && (mode & 0o7777) === options.mode) return true;
    await dress(probe, options);
    return false;
  } catch (cause) {
    if (errno(cause) !== 'EPERM') throw cause;
    const owner = (['uid', 'gid'] as const).flatMap((key) =>
      options[key] === undefined ? [] : [`${key} ${options[key]}`],
    );
    throw new StowageError(
      `store ${place.store} wants volumes owned by ${owner.join(' and ')}, which this user may not give away`,
      {
        code: 'denied',
        reason: 'owner-denied',
        action: "Run Stowage as root, or leave the store's options uid and gid out.",
        cause,
      },
    );
  } finally {
    await rmdir(probe);
  }
}

/** An empty volume is gone in one call; a full one is moved where `reclaim` finds it. A planted link moves as itself. */
async function discard(place: Place, path: string, id: string): Promise<void> {
  try {
    return await rmdir(path);
  } catch (cause) {
    const code = errno(cause);
    if (code === 'ENOENT') return;
    if (code !== 'ENOTEMPTY' && code !== 'EEXIST' && code !== 'ENOTDIR') throw cause;
  }
  try {
    await renameIfThere(path, place.own('deleting', id));
  } catch (cause) {
    // The remains of an interrupted deletion of the same volume are still there.
    if (!['ENOTEMPTY', 'EEXIST', 'ENOTDIR', 'EISDIR'].includes(errno(cause) ?? '')) throw cause;
    await renameIfThere(path, place.own('deleting', `${id}.${randomBytes(6).toString('hex')}`));
  }
}
