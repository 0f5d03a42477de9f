import { constants } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { VolumeId, VolumeSpec } from '#core/model.ts';
import { volumeNotEmpty } from '#core/volume-errors.ts';
import { dataUnusable } from '../file-store/errors.ts';
import type { Layout } from '../file-store/layout.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import { lstatIfThere, renameIfThere, unlinkIfThere } from './files.ts';
import { blockSize, type FoundFileSystem, fileSize, MiB, readGeometry } from './geometry.ts';
import type { FilesystemType, TopDirectory } from './mkfs.ts';
import { mkfsExt4, mkfsXfs, newExt4, newXfs } from './mkfs.ts';
import type { LocalOptions } from './options.ts';

/** mkfs.xfs refuses smaller sizes. */
const minXfsBytes = 300n * MiB;
const minImageBytes = 16n * MiB;
const maxImageBytes = 1024n ** 5n;

export function createImageLayout(options: LocalOptions, storeRoot: StoreRoot, clock: Clock): Layout {
  const topDirectory: TopDirectory = {
    uid: options.uid ?? process.geteuid?.() ?? 0,
    gid: options.gid ?? process.getegid?.() ?? 0,
    mode: options.mode,
  };
  const typeFor = (bytes: bigint): FilesystemType => options.filesystem ?? (bytes < minXfsBytes ? 'ext4' : 'xfs');

  function requireValidSize(bytes: bigint | undefined): asserts bytes is bigint {
    if (bytes === undefined) throw sizeNeeded(storeRoot);
    const minBytes = options.filesystem === 'xfs' ? minXfsBytes : minImageBytes;
    if (bytes < minBytes || bytes > maxImageBytes) throw sizeOutOfRange(storeRoot, bytes, minBytes);
  }

  async function discard(path: string, id: VolumeId): Promise<void> {
    await renameIfThere(path, storeRoot.ownPath('deleting', `${id}.img`));
  }

  async function make(want: Pick<VolumeSpec, 'bytes' | 'access'>, path: string, scope: Scope): Promise<void> {
    const { bytes, access } = want;
    requireValidSize(bytes);
    const scratch = storeRoot.scratchPath();
    try {
      if (access === 'block') await enlarge(scratch, roundUp(bytes), 'new');
      else if (typeFor(bytes) === 'xfs') {
        await enlarge(scratch, fileSize(newXfs, bytes), 'new');
        await mkfsXfs(scratch, topDirectory, clock, scope);
      } else {
        await enlarge(scratch, fileSize(newExt4(bytes), bytes), 'new');
        await mkfsExt4(scratch, bytes, topDirectory, clock, scope);
      }
      await syncFile(scratch);
      await rename(scratch, path);
    } catch (cause) {
      await unlinkIfThere(scratch);
      throw cause;
    }
  }

  return {
    kind: 'image',
    suffix: '.img',
    trashName: 'image',
    access: ['filesystem', 'block'],
    enforcesCapacity: true,
    canEnforce: true,
    opaque: true,
    filesystemFor: typeFor,
    refuseUnsupported: (bytes) => requireValidSize(bytes),
    make,
    discard,
    // The contents of an image can't be counted from here. The record, read under the volume's lock, says whether a client ever got
    // it: `markUsed` takes the same lock before every mount, and fails once the volume is gone.
    discardIfEmpty: async (path, { id, name, unused }) => {
      if (unused !== true) throw volumeNotEmpty({ store: storeRoot.store, name });
      await discard(path, id);
    },
    unsuitableBecause: ({ type }) =>
      type === 'file' ? undefined : type === 'link' ? 'is a symbolic link' : 'is not a plain file',
    grow: async (path, meta, bytes) => {
      requireValidSize(bytes);
      await enlarge(path, meta.access === 'block' ? roundUp(bytes) : await grownSize(path, bytes));
    },
    source: async (path, { access }) => {
      const filesystem = access === 'block' ? undefined : (await requireGeometry(path)).geometry.filesystem;
      return { kind: 'loop', node: storeRoot.context.node, path, filesystem };
    },
    usage: async (path, { unused }) => {
      const stats = await lstatIfThere(path);
      if (stats?.isFile() !== true) throw dataUnusable(path, path, 'is not a plain file');
      const bytes = BigInt(stats.blocks) * 512n;
      // Files inside the image can only be counted where it is mounted.
      return { bytes, files: 0n, complete: true, empty: unused === true, measuredAt: clock.now() };
    },
    isStore: async () => false,
    inspectData: async (path) => {
      const found = await readGeometry(path);
      return found === undefined
        ? { reason: 'it holds neither an xfs nor an ext4 file system', access: 'block' }
        : { bytes: found.usableBytes, access: 'filesystem' };
    },
  };
}

const roundUp = (bytes: bigint): bigint => ((bytes + blockSize - 1n) / blockSize) * blockSize;

async function requireGeometry(path: string): Promise<FoundFileSystem> {
  const found = await readGeometry(path);
  if (found !== undefined) return found;
  throw dataUnusable(path, path, 'holds neither an xfs nor an ext4 file system');
}

async function grownSize(path: string, bytes: bigint): Promise<bigint> {
  const { geometry } = await requireGeometry(path);
  const size = fileSize(geometry, bytes);
  // Users of the volume can write its superblock. It must not turn a small request into a huge file.
  if (size > bytes * 2n + 1024n * MiB) throw dataUnusable(path, path, 'holds a damaged file system');
  return size;
}

/** Makes the file larger, as a sparse file. Never shrinks it, which would lose data. */
async function enlarge(path: string, size: bigint, how: 'existing' | 'new' = 'existing'): Promise<void> {
  const create = how === 'new' ? constants.O_CREAT | constants.O_EXCL : 0;
  const file = await open(path, constants.O_RDWR | constants.O_NOFOLLOW | create, 0o600);
  try {
    const { size: currentSize } = await file.stat({ bigint: true });
    if (currentSize >= size) return;
    // 1 PiB is below 2^53.
    await file.truncate(Number(size));
    await file.sync();
  } finally {
    await file.close();
  }
}

async function syncFile(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

function sizeNeeded(storeRoot: StoreRoot): StowageError {
  return new StowageError(`a volume in store ${storeRoot.store} needs a size`, {
    code: 'invalid',
    reason: 'size-needed',
    action: 'Give one, for example --size 1G, or set defaultSize on the store.',
  });
}

function sizeOutOfRange(storeRoot: StoreRoot, bytes: bigint, minBytes: bigint): StowageError {
  const bounds = `${minBytes / MiB} MiB (${minBytes} bytes) to 1 PiB (${maxImageBytes} bytes)`;
  return new StowageError(
    `a volume of ${bytes} bytes cannot be created in store ${storeRoot.store}: the size must be ${bounds}`,
    {
      code: 'out-of-range',
      reason: 'size-out-of-range',
      action: `Give a size of ${bounds}.`,
    },
  );
}
