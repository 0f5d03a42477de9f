import type { Scope } from '#base/log.ts';
import { readSuperblock, type Superblock } from '#base/superblock.ts';
import { StowageError } from '#core/errors.ts';
import type { HeldLoop } from '../mounter/loop-devices.ts';
import { cannotAsk } from '../mounter/loop-files.ts';
import type { Loop } from '../mounter/loops.ts';
import { located } from '../mounter/paths.ts';
import { attachedReadOnly, damaged, loopMountFailure, occupied } from './loop-errors.ts';
import { growMounted, growUnmountedExt4 } from './loop-growth.ts';
import { attachLoop, detachUnused, type LoopParts, loopsOn, refuseOtherMounts, useDirectIo } from './loop-parts.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

/** How often a device can be detached between finding and opening it. */
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
    // The data are there, only not all of the room: better than no mount.
    scope.log.warn('the file system is smaller than its image', { image, why: cause.message, action: cause.action });
  });
}

export async function unstageFileSystem(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const place = await located(at);
  const table = await parts.readTable();
  const there = place === undefined ? undefined : table.at(place);
  // Its file system is mounted there, so the number is this device's also if no path leads to it.
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
  // Not staged: it grows when it is.
  if (place === undefined) return;
  const { path: image } = await sourceAt(path, 'file');
  const loop = await mountedAt(parts, image, place);
  if (loop === undefined) return;
  await growMounted(parts, { image, kind, loop, place }, scope);
}

/** Undefined: nothing is mounted there. Something else: 'conflict'. */
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
  // Attached already: some other mount namespace may still have it mounted, so nobody else may write to the file.
  if (superblock.kind === 'ext4' && (await loopsOn(parts, image)).length === 0) {
    await growUnmountedExt4(parts, image, superblock, scope);
  }
  // This process has the device open until it is mounted, and so has the program that mounts it: the number can't become
  // another program's device in between. Wherever a kill strikes, and whoever unmounts it later, the kernel detaches the device.
  await using device = (await presentLoop(parts, image, scope)) ?? (await attachLoop(parts, image, false, scope));
  try {
    const words = ['-t', kind, '-o', 'nosuid,nodev', '--', device.path, place];
    await parts.run('mount', words, scope, { holding: [device] });
  } catch (cause) {
    throw loopMountFailure(image, place, kind, cause);
  }
}

/** A device that the image is attached to already, perhaps mounted in another mount namespace: two would each have a cache of their own. */
async function presentLoop(parts: LoopParts, image: string, scope: Scope): Promise<HeldLoop | undefined> {
  for (let attempt = 1; ; attempt++) {
    const [present] = await loopsOn(parts, image);
    if (present === undefined) return undefined;
    if (present.readOnly) throw attachedReadOnly(image, present);
    const device = await parts.loopDevices.hold(present, scope);
    if (device !== undefined) return device;
    // It was detached meanwhile, and then it is not listed any more. To attach the image a second time would destroy it.
    if (attempt === mostHolds) throw cannotAsk(present, image);
  }
}

function vanished(image: string, place: string): StowageError {
  return new StowageError(`${image} was mounted at ${place} and is not there any more`, {
    code: 'unavailable',
    reason: 'mount-vanished',
    action: 'Somebody unmounted it at that moment: repeat.',
  });
}
