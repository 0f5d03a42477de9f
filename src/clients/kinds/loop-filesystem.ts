import type { Scope } from '#base/log.ts';
import { readSuperblock, type Superblock } from '#base/superblock.ts';
import { StowageError } from '#core/errors.ts';
import type { Loop } from '../mounter/loops.ts';
import { located } from '../mounter/paths.ts';
import { CommandFailed } from '../mounter/run.ts';
import { damaged, loopMountFailure, occupied } from './loop-errors.ts';
import { growMounted, growUnmountedExt4 } from './loop-growth.ts';
import { detachIdle, type LoopParts, loopsOn, refuseOtherMounts, useDirectIo } from './loop-parts.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

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
  if (place !== undefined) {
    const table = await parts.readTable();
    const there = table.at(place);
    const loop = there && (await parts.loops()).find((one) => one.device === there.device);
    if (there !== undefined && loop !== undefined) refuseOtherMounts(loop, there, table);
    await parts.mounter.unmount(place, scope);
  }
  await detachIdle(parts, path, scope);
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
  for (let attempt = 1; ; attempt++) {
    try {
      // One program attaches and mounts, and the device is set to autoclear: wherever a crash or a kill strikes, and
      // whoever unmounts it, no device is left. It also takes the device that already has the file, if there is one.
      await parts.run('mount', ['-t', kind, '-o', 'loop,nosuid,nodev', '--', image, place], scope);
      return;
    } catch (cause) {
      if (attempt === 5 || !(cause instanceof CommandFailed) || !/set ?up loop device/.test(cause.stderr)) {
        throw loopMountFailure(image, place, kind, cause);
      }
      // Others take loop devices at the same time.
      await parts.clock.sleep(50 * attempt, scope.signal);
    }
  }
}

function vanished(image: string, place: string): StowageError {
  return new StowageError(`${image} was mounted at ${place} and is not there any more`, {
    code: 'unavailable',
    reason: 'mount-vanished',
    action: 'Somebody unmounted it at that moment: repeat.',
  });
}
