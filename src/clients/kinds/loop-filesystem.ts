import type { Scope } from '#base/log.ts';
import { readSuperblock, type Superblock } from '#base/superblock.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from '../mounter/attached-loops.ts';
import type { HeldLoop } from '../mounter/loop-devices.ts';
import { cannotAsk } from '../mounter/loop-files.ts';
import { located } from '../mounter/paths.ts';
import { attachedReadOnly, damaged, loopMountFailure, occupied } from './loop-errors.ts';
import { growMounted, growUnmountedExt4 } from './loop-growth.ts';
import { attachLoop, detachUnused, type LoopParts, loopsOn, refuseOtherMounts, useDirectIo } from './loop-parts.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

/** How often a device may be detached between finding and opening it. */
const mostHolds = 5;

export async function stageFileSystem(
  parts: LoopParts,
  path: string,
  kind: Superblock['kind'],
  at: string,
  scope: Scope,
): Promise<void> {
  const { path: image } = await sourceAt(path, 'file');
  const place = await makeStage(at, 'filesystem');
  if ((await mountedAt(parts, image, place)) === undefined) await mountImage(parts, image, kind, place, scope);
  const loop = await mountedAt(parts, image, place);
  if (loop === undefined) throw vanished(image, place);
  await useDirectIo(parts, loop, scope);
  await growMounted(parts, { image, kind, loop, place }, scope).catch((cause: unknown) => {
    if (!(cause instanceof StowageError) || !cause.reason.startsWith('grow-')) throw cause;
    // A mount with less room than the image has is better than none.
    scope.log.warn('the file system is smaller than its image', { image, why: cause.message, action: cause.action });
  });
}

export async function unstageFileSystem(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const place = await located(at);
  const table = await parts.readTable();
  const there = place === undefined ? undefined : table.at(place);
  // Found by device number: the file system is mounted, so the number still belongs to this device, even if no path leads to the image.
  const shown = there && (await parts.loops()).find((one) => one.device === there.device);
  if (there !== undefined && shown !== undefined) refuseOtherMounts(shown, there, table);
  if (place !== undefined) await parts.mounter.unmount(place, scope);
  await detachUnused(parts, path, scope, shown);
  if (place !== undefined) await removeStage(place, scope);
}

export async function growFileSystem(
  parts: LoopParts,
  path: string,
  kind: Superblock['kind'],
  at: string,
  scope: Scope,
): Promise<void> {
  const place = await located(at);
  // Not staged: the file system grows at the next stage.
  if (place === undefined) return;
  const { path: image } = await sourceAt(path, 'file');
  const loop = await mountedAt(parts, image, place);
  if (loop === undefined) return;
  await growMounted(parts, { image, kind, loop, place }, scope);
}

/** Undefined: nothing is mounted there. Throws 'conflict' if something else is. */
async function mountedAt(parts: LoopParts, image: string, place: string): Promise<Loop | undefined> {
  const there = (await parts.readTable()).at(place);
  if (there === undefined) return undefined;
  const loop = (await loopsOn(parts, image)).find((one) => one.device === there.device);
  if (loop === undefined) throw occupied(place, `${there.source} (${there.type})`);
  return loop;
}

async function mountImage(
  parts: LoopParts,
  image: string,
  kind: Superblock['kind'],
  place: string,
  scope: Scope,
): Promise<void> {
  const superblock = await readSuperblock(image);
  if (superblock?.kind !== kind) throw damaged(image, kind);
  // If the image is attached, it may be mounted in another mount namespace, so nothing else may write to the file.
  if (superblock.kind === 'ext4' && (await loopsOn(parts, image)).length === 0) {
    await growUnmountedExt4(parts, image, superblock, scope);
  }
  // This process and the mount program keep the device open until it is mounted, so no other program can take the device in between.
  // Its autoclear flag makes the kernel detach it after a kill at any point, and after an unmount by any program.
  await using device = (await presentLoop(parts, image, scope)) ?? (await attachLoop(parts, image, false, scope));
  try {
    const words = ['-t', kind, '-o', 'nosuid,nodev', '--', device.path, place];
    await parts.run('mount', words, scope, { inherited: [device] });
  } catch (cause) {
    throw loopMountFailure(image, place, kind, cause);
  }
}

/** A device that has the image attached already, perhaps mounted in another mount namespace: two devices would have separate caches. */
async function presentLoop(parts: LoopParts, image: string, scope: Scope): Promise<HeldLoop | undefined> {
  for (let attempt = 1; ; attempt++) {
    const [present] = await loopsOn(parts, image);
    if (present === undefined) return undefined;
    if (present.readOnly) throw attachedReadOnly(image, present);
    const device = await parts.loopDevices.hold(present, scope);
    if (device !== undefined) return device;
    // It was detached meanwhile, and should no longer be listed. Attaching the image a second time would destroy it.
    if (attempt === mostHolds) throw cannotAsk(present, image);
  }
}

function vanished(image: string, place: string): StowageError {
  return new StowageError(`${image} was mounted at ${place}, and the mount is gone`, {
    code: 'unavailable',
    reason: 'mount-vanished',
    action: 'Another program unmounted it. Retry.',
  });
}
