import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { isNodeOf, isSameAttachment, type Loop } from '../mounter/attached-loops.ts';
import { findHolders } from '../mounter/holders.ts';
import { located } from '../mounter/paths.ts';
import { occupied, stillOpen } from './loop-errors.ts';
import { enlargeLoop } from './loop-growth.ts';
import {
  attachLoop,
  detachIdle,
  detachUnused,
  type LoopParts,
  loopShown,
  loopsOn,
  refuseOtherMounts,
  useDirectIo,
} from './loop-parts.ts';
import { makeStage, removeStage, sourceAt } from './staging.ts';

/** Binds the device's node onto a file. A bind does not open the device, so the kernel would detach a device with autoclear. */
export async function stageBlock(
  parts: LoopParts,
  path: string,
  readOnly: boolean,
  at: string,
  scope: Scope,
): Promise<void> {
  const { path: image, bytes } = await sourceAt(path, 'file');
  const place = await makeStage(at, 'block');
  const loop = (await boundAt(parts, image, place, scope)) ?? (await leftAttached(parts, image, readOnly, scope));
  if (loop === undefined) return await stageFresh(parts, image, readOnly, place, scope);
  if (loop.readOnly !== readOnly) throw otherMode(image, loop);
  await useDirectIo(parts, loop, scope);
  await enlargeLoop(parts, loop, bytes, scope);
  await parts.mounter.bind(loop.node, place, { readOnly: false }, scope);
}

/** Until it is bound, the device keeps autoclear, so that the kernel detaches it if this process is killed. */
async function stageFresh(
  parts: LoopParts,
  image: string,
  readOnly: boolean,
  place: string,
  scope: Scope,
): Promise<void> {
  await using device = await attachLoop(parts, image, readOnly, scope);
  if (device.readOnly !== readOnly) throw otherMode(image, device);
  await parts.mounter.bind(device.path, place, { readOnly: false }, scope);
  await device.keep();
}

export async function unstageBlock(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const place = await located(at);
  const table = await parts.readTable();
  const there = place === undefined ? undefined : table.at(place);
  const shown = there && (await loopShown(parts, path, there));
  if (there !== undefined && shown !== undefined) refuseOtherMounts(shown, there, table);
  if (place !== undefined) await parts.mounter.unmount(place, scope);
  for (const loop of await detachUnused(parts, path, scope, shown)) await untilGone(parts, loop, scope);
  if (place !== undefined) await removeStage(place, scope);
}

export async function growBlock(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const place = await located(at);
  if (place === undefined || (await parts.readTable()).at(place) === undefined) return;
  const { path: image, bytes } = await sourceAt(path, 'file');
  for (const loop of await loopsOn(parts, image)) await enlargeLoop(parts, loop, bytes, scope);
}

async function boundAt(parts: LoopParts, image: string, place: string, scope: Scope): Promise<Loop | undefined> {
  const there = (await parts.readTable()).at(place);
  if (there === undefined) return undefined;
  const loop = (await loopsOn(parts, image)).find((one) => isNodeOf(one, there));
  if (loop !== undefined) return loop;
  if (!/^\/loop\d+$/.test(there.root)) throw occupied(place, `${there.source} (${there.type})`);
  // Another program detached the device. By now it may have another file, which must not be visible here.
  await parts.mounter.unmount(place, scope);
  return undefined;
}

/** A device that a crash or another program left attached to the image. */
async function leftAttached(
  parts: LoopParts,
  image: string,
  readOnly: boolean,
  scope: Scope,
): Promise<Loop | undefined> {
  // A device with the other mode is detached if it is idle.
  if ((await loopsOn(parts, image)).some((loop) => loop.readOnly !== readOnly)) await detachIdle(parts, image, scope);
  const [present] = await loopsOn(parts, image);
  if (present?.autoclear === true) throw lettingGo(image, present);
  return present;
}

/** If the device is open elsewhere, the kernel detaches it with the last close; until then the volume is still in use. */
async function untilGone(parts: LoopParts, loop: Loop, scope: Scope): Promise<void> {
  for (let attempt = 0; attempt < 10; attempt++) {
    if (!(await parts.loops()).some((one) => isSameAttachment(one, loop))) return;
    // udev and other programs open new devices for a moment.
    await parts.clock.sleep(100, scope.signal);
  }
  const holders = await findHolders(loop.node, parts.clock, scope, { exactly: true });
  const by = holders.map((holder) => `${holder.pid} (${holder.command})`).join(', ');
  throw stillOpen(loop.file, by === '' ? 'a process that could not be found' : `process ${by}`);
}

/** All mounts on this node share one device: two would have separate caches. */
function otherMode(image: string, loop: Pick<Loop, 'readOnly'>): StowageError {
  const [is, not] = loop.readOnly ? ['read-only', 'for writing'] : ['for writing', 'read-only'];
  return new StowageError(`${image} is mounted as a block device ${is} on this node, so it cannot be mounted ${not}`, {
    code: 'conflict',
    reason: 'block-mode',
    action: `Unmount it first (stowage mounts shows where), or mount it ${is} too.`,
  });
}

function lettingGo(image: string, loop: Loop): StowageError {
  return new StowageError(`${image} is still being detached: ${loop.node} is open`, {
    code: 'busy',
    reason: 'loop-detaching',
    action: `Retry in a moment. To see which process has it open: fuser -v ${loop.node}`,
  });
}
