import type { Scope } from '#base/log.ts';
import { readSuperblock, type Superblock } from '#base/superblock.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from '../mounter/attached-loops.ts';
import type { HeldLoop } from '../mounter/loop-devices.ts';
import { loopUnresponsive } from '../mounter/loop-files.ts';
import { resolveParents } from '../mounter/paths.ts';
import { attachedReadOnly, imageDamaged, loopMountFailure, mountOccupied } from './loop-errors.ts';
import { growMounted, growUnmountedExt4 } from './loop-growth.ts';
import { attachLoop, detachUnused, imageLoops, type LoopParts, refuseOtherMounts, useDirectIo } from './loop-parts.ts';
import { locateSource, makeStage, removeStage } from './staging.ts';

/** How often a device may be detached between finding and opening it. */
const maxHoldAttempts = 5;

export async function stageFileSystem(
  parts: LoopParts,
  path: string,
  kind: Superblock['kind'],
  at: string,
  scope: Scope,
): Promise<void> {
  const { path: image } = await locateSource(path, 'file');
  const mountPoint = await makeStage(at, 'filesystem');
  if ((await findMountedLoop(parts, image, mountPoint)) === undefined)
    await mountImage(parts, image, kind, mountPoint, scope);
  const loop = await findMountedLoop(parts, image, mountPoint);
  if (loop === undefined) throw mountVanished(image, mountPoint);
  await useDirectIo(parts, loop, scope);
  await growMounted(parts, { image, kind, loop, mountPoint }, scope).catch((cause: unknown) => {
    if (!(cause instanceof StowageError) || !cause.reason.startsWith('grow-')) throw cause;
    // A mount that is smaller than its image is better than no mount.
    scope.log.warn('the file system is smaller than its image', { image, why: cause.message, action: cause.action });
  });
}

export async function unstageFileSystem(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const mountPoint = await resolveParents(at);
  const table = await parts.readTable();
  const currentMount = mountPoint === undefined ? undefined : table.mountAt(mountPoint);
  // Found by device number: the file system is mounted, so the number still belongs to this device, even if no path leads to the image.
  const shown = currentMount && (await parts.listLoops()).find((one) => one.device === currentMount.device);
  if (currentMount !== undefined && shown !== undefined) refuseOtherMounts(shown, currentMount, table);
  if (mountPoint !== undefined) await parts.mounter.unmount(mountPoint, scope);
  await detachUnused(parts, path, scope, shown);
  if (mountPoint !== undefined) await removeStage(mountPoint, scope);
}

export async function growFileSystem(
  parts: LoopParts,
  path: string,
  kind: Superblock['kind'],
  at: string,
  scope: Scope,
): Promise<void> {
  const mountPoint = await resolveParents(at);
  // Not staged: the file system grows at the next stage.
  if (mountPoint === undefined) return;
  const { path: image } = await locateSource(path, 'file');
  const loop = await findMountedLoop(parts, image, mountPoint);
  if (loop === undefined) return;
  await growMounted(parts, { image, kind, loop, mountPoint }, scope);
}

/** Undefined: nothing is mounted there. Throws 'conflict' if something else is. */
async function findMountedLoop(parts: LoopParts, image: string, mountPoint: string): Promise<Loop | undefined> {
  const currentMount = (await parts.readTable()).mountAt(mountPoint);
  if (currentMount === undefined) return undefined;
  const loop = (await imageLoops(parts, image)).find((one) => one.device === currentMount.device);
  if (loop === undefined) throw mountOccupied(mountPoint, `${currentMount.source} (${currentMount.type})`);
  return loop;
}

async function mountImage(
  parts: LoopParts,
  image: string,
  kind: Superblock['kind'],
  mountPoint: string,
  scope: Scope,
): Promise<void> {
  const superblock = await readSuperblock(image);
  if (superblock?.kind !== kind) throw imageDamaged(image, kind);
  // If the image is attached, it may be mounted in another mount namespace, so nothing else may write to the file.
  if (superblock.kind === 'ext4' && (await imageLoops(parts, image)).length === 0) {
    await growUnmountedExt4(parts, image, superblock, scope);
  }
  // This process and the mount program keep the device open until it is mounted, so no other program can take the device in between.
  // Its autoclear flag makes the kernel detach it after a kill at any point, and after an unmount by any program.
  await using device = (await holdAttachedLoop(parts, image, scope)) ?? (await attachLoop(parts, image, false, scope));
  try {
    const mountArguments = ['-t', kind, '-o', 'nosuid,nodev', '--', device.path, mountPoint];
    await parts.run('mount', mountArguments, scope, { inherited: [device] });
  } catch (cause) {
    throw loopMountFailure(image, mountPoint, kind, cause);
  }
}

/** A device that has the image attached already, perhaps mounted in another mount namespace: two devices would have separate caches. */
async function holdAttachedLoop(parts: LoopParts, image: string, scope: Scope): Promise<HeldLoop | undefined> {
  for (let attempt = 1; ; attempt++) {
    const [present] = await imageLoops(parts, image);
    if (present === undefined) return undefined;
    if (present.readOnly) throw attachedReadOnly(image, present);
    const device = await parts.loopDevices.hold(present, scope);
    if (device !== undefined) return device;
    // It was detached meanwhile, and should no longer be listed. Attaching the image a second time would destroy it.
    if (attempt === maxHoldAttempts) throw loopUnresponsive(present, image);
  }
}

function mountVanished(image: string, mountPoint: string): StowageError {
  return new StowageError(`${image} was mounted at ${mountPoint}, and the mount is gone`, {
    code: 'unavailable',
    reason: 'mount-vanished',
    action: 'Another program unmounted it. Retry.',
  });
}
