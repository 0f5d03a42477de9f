import { lstat, statfs } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import { unmountedImage } from '#base/e2fsprogs.ts';
import { isErrno } from '#base/errno.ts';
import type { Scope } from '#base/log.ts';
import { type Ext4Superblock, readSuperblock, type Superblock } from '#base/superblock.ts';
import { endsWithin, waitWithGrace } from '#base/wait.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from '../mounter/attached-loops.ts';
import { searchHolders } from '../mounter/holders.ts';
import { hasNoWriter } from '../mounter/image-lock.ts';
import { CommandFailed, type RunProgram } from '../mounter/run-program.ts';
import { canGrow } from './can-grow.ts';
import type { GrowCalls } from './grow-calls.ts';
import { growFailed, growNeedsUnmount, imageDamaged } from './loop-errors.ts';
import type { LoopParts } from './loop-parts.ts';

export interface GrowthParts {
  /** See LoopParts. */
  readonly lockDescriptor?: number | undefined;
  readonly run: RunProgram;
  readonly clock: Clock;
  readonly growCalls: GrowCalls;
}

/** A check of a large image takes long, and has to start over if it is stopped. */
const checkTimeoutMs = 600_000;
const growTimeoutMs = 30_000;
/** For searching all processes of a busy machine. */
const searchTimeoutMs = 30_000;
const leaseTimeoutMs = 5_000;

/**
 * Grows an ext4 file system that is not mounted. Neither e2fsck nor resize2fs may be stopped half-way, so they outlive a cancelled call
 * and a killed Stowage; a repeated call waits until no process has the image open.
 */
export async function growUnmountedExt4(
  parts: GrowthParts,
  image: string,
  superblock: Ext4Superblock,
  scope: Scope,
): Promise<void> {
  const { size } = await lstat(image);
  if (superblock.clean && !canGrow(superblock, size)) return;
  await waitUntilUnused(parts, image, scope);
  const unstoppable = { letFinish: true, timeoutMs: checkTimeoutMs, env: unmountedImage };
  try {
    await parts.run('e2fsck', ['-f', '-p', image], scope, unstoppable);
  } catch (cause) {
    // Exit status 1: errors were corrected, plus 2 with `unmountedImage`. With any other the image must not be mounted.
    if (!(cause instanceof CommandFailed)) throw cause;
    if (cause.exit !== 1 && cause.exit !== 3) throw imageDamaged(image, 'ext4', cause);
  }
  const checked = await readSuperblock(image);
  if (checked === undefined || !canGrow(checked, size)) return;
  try {
    await parts.run('resize2fs', [image], scope, unstoppable);
  } catch (cause) {
    throw cause instanceof CommandFailed ? growFailed(image, cause) : cause;
  }
}

async function waitUntilUnused(
  { clock, lockDescriptor }: Pick<GrowthParts, 'clock' | 'lockDescriptor'>,
  image: string,
  scope: Scope,
): Promise<void> {
  for (let attempt = 0; attempt < 50; attempt++) {
    const search = { exactPath: true, maxHolders: 1, exceptFd: lockDescriptor, timeoutMs: searchTimeoutMs };
    const { holders, isComplete } = await searchHolders(image, clock, scope, search);
    const [holder] = holders;
    scope.signal.throwIfAborted();
    if (holder === undefined) {
      if (isComplete || (await hasNoWriterInTime(image, clock))) return;
      throw holdersUnknown(image);
    }
    scope.log.debug('waiting for the image', { image, pid: holder.pid, command: holder.command });
    await clock.sleep(200, scope.signal);
  }
  throw new StowageError(`another program is using ${image}`, {
    code: 'busy',
    reason: 'image-busy',
    action: `Wait until that program has finished, then retry. To see which it is: fuser -v ${image}`,
  });
}

/** Whether no process has the image open for writing, as e2fsck and resize2fs would. False also if the kernel does not answer in time. */
async function hasNoWriterInTime(image: string, clock: Clock): Promise<boolean> {
  const writerCheck = hasNoWriter(image);
  return (await endsWithin(writerCheck, leaseTimeoutMs, clock)) && (await writerCheck);
}

const holdersUnknown = (image: string): StowageError =>
  new StowageError(`Stowage could not determine whether another program has ${image} open`, {
    code: 'busy',
    reason: 'image-busy',
    action: `Retry when the machine is less busy. To see which process has the image open: fuser -v ${image}`,
  });

/** Grows the file system while it is mounted at `mountPoint`. Does nothing if there is no room to grow into. */
export async function growMounted(
  parts: GrowthParts & Pick<LoopParts, 'loopDevices'>,
  target: {
    readonly image: string;
    readonly kind: Superblock['kind'];
    readonly loop: Loop;
    readonly mountPoint: string;
  },
  scope: Scope,
): Promise<void> {
  const { image, kind, loop, mountPoint } = target;
  const { size } = await lstat(image);
  await enlargeLoop(parts, loop, size, scope);
  const superblock = await readSuperblock(image);
  if (superblock !== undefined && !(await isWorthGrowing(superblock, mountPoint, size))) return;
  const { clock, growCalls } = parts;
  using limit = clock.deadline(growTimeoutMs, scope.signal);
  const blockBytes = Number(superblock?.blockBytes ?? 4096n);
  const growing = kind === 'xfs' ? growCalls.xfs(mountPoint, size) : growCalls.ext4(mountPoint, size, blockBytes);
  try {
    await waitWithGrace(growing, limit.signal, clock);
  } catch (cause) {
    if (scope.signal.aborted) throw scope.signal.reason;
    if (kind === 'ext4' && isErrno(cause, 'EPERM', 'EACCES', 'EOPNOTSUPP')) throw growNeedsUnmount(image, cause);
    throw growFailed(image, cause);
  }
}

/** A loop device keeps the file's size at the attach until LOOP_SET_CAPACITY. */
export async function enlargeLoop(
  { loopDevices }: Pick<LoopParts, 'loopDevices'>,
  loop: Loop,
  bytes: number,
  scope: Scope,
): Promise<void> {
  if (bytes >= loop.bytes + 512) await loopDevices.updateCapacity(loop, scope);
}

/** The superblock in the image can lag behind a mounted xfs. statfs does not, but it excludes the blocks of the log. */
async function isWorthGrowing(superblock: Superblock, mountPoint: string, bytes: number): Promise<boolean> {
  if (superblock.kind === 'ext4') return canGrow(superblock, bytes);
  return canGrow(superblock, bytes, BigInt((await statfs(mountPoint)).blocks) + superblock.logBlocks);
}
