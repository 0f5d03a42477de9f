import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import { isBindOfNode, isSameAttachment, type Loop } from '../mounter/attached-loops.ts';
import { findHolders } from '../mounter/holders.ts';
import { resolveParents } from '../mounter/paths.ts';
import { mountOccupied, stillOpen } from './loop-errors.ts';
import { enlargeLoop } from './loop-growth.ts';
import {
  attachLoop,
  detachIdle,
  detachUnused,
  findShownLoop,
  imageLoops,
  type LoopParts,
  refuseOtherMounts,
  useDirectIo,
} from './loop-parts.ts';
import { locateSource, makeStage, removeStage } from './staging.ts';

/** Binds the device's node onto a file. A bind does not open the device, so the kernel would detach a device with autoclear. */
export async function stageBlock(
  parts: LoopParts,
  path: string,
  readOnly: boolean,
  at: string,
  scope: Scope,
): Promise<void> {
  const { path: image, bytes } = await locateSource(path, 'file');
  const mountPoint = await makeStage(at, 'block');
  const loop =
    (await findBoundLoop(parts, image, mountPoint, scope)) ?? (await findLeftoverLoop(parts, image, readOnly, scope));
  if (loop === undefined) return await attachAndBind(parts, image, readOnly, mountPoint, scope);
  if (loop.readOnly !== readOnly) throw otherMode(image, loop);
  await useDirectIo(parts, loop, scope);
  await enlargeLoop(parts, loop, bytes, scope);
  await parts.mounter.bind(loop.node, mountPoint, { readOnly: false }, scope);
}

/** Until it is bound, the device keeps autoclear, so that the kernel detaches it if this process is killed. */
async function attachAndBind(
  parts: LoopParts,
  image: string,
  readOnly: boolean,
  mountPoint: string,
  scope: Scope,
): Promise<void> {
  await using device = await attachLoop(parts, image, readOnly, scope);
  if (device.readOnly !== readOnly) throw otherMode(image, device);
  await parts.mounter.bind(device.path, mountPoint, { readOnly: false }, scope);
  await device.keep();
}

export async function unstageBlock(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const mountPoint = await resolveParents(at);
  const table = await parts.readTable();
  const currentMount = mountPoint === undefined ? undefined : table.mountAt(mountPoint);
  const shown = currentMount && (await findShownLoop(parts, path, currentMount));
  if (currentMount !== undefined && shown !== undefined) refuseOtherMounts(shown, currentMount, table);
  if (mountPoint !== undefined) await parts.mounter.unmount(mountPoint, scope);
  for (const loop of await detachUnused(parts, path, scope, shown)) await waitUntilDetached(parts, loop, scope);
  if (mountPoint !== undefined) await removeStage(mountPoint, scope);
}

export async function growBlock(parts: LoopParts, path: string, at: string, scope: Scope): Promise<void> {
  const mountPoint = await resolveParents(at);
  if (mountPoint === undefined || (await parts.readTable()).mountAt(mountPoint) === undefined) return;
  const { path: image, bytes } = await locateSource(path, 'file');
  for (const loop of await imageLoops(parts, image)) await enlargeLoop(parts, loop, bytes, scope);
}

async function findBoundLoop(
  parts: LoopParts,
  image: string,
  mountPoint: string,
  scope: Scope,
): Promise<Loop | undefined> {
  const currentMount = (await parts.readTable()).mountAt(mountPoint);
  if (currentMount === undefined) return undefined;
  const loop = (await imageLoops(parts, image)).find((one) => isBindOfNode(one, currentMount));
  if (loop !== undefined) return loop;
  if (!/^\/loop\d+$/.test(currentMount.root))
    throw mountOccupied(mountPoint, `${currentMount.source} (${currentMount.type})`);
  // Another program detached the device. By now it may have another file, which must not be visible here.
  await parts.mounter.unmount(mountPoint, scope);
  return undefined;
}

/** A device that a crash or another program left attached to the image. */
async function findLeftoverLoop(
  parts: LoopParts,
  image: string,
  readOnly: boolean,
  scope: Scope,
): Promise<Loop | undefined> {
  // A device with the other mode is detached if it is idle.
  if ((await imageLoops(parts, image)).some((loop) => loop.readOnly !== readOnly))
    await detachIdle(parts, image, scope);
  const [present] = await imageLoops(parts, image);
  if (present?.autoclear === true) throw stillDetaching(image, present);
  return present;
}

/** If the device is open elsewhere, the kernel detaches it with the last close; until then the volume is still in use. */
async function waitUntilDetached(parts: LoopParts, loop: Loop, scope: Scope): Promise<void> {
  for (let attempt = 0; attempt < 10; attempt++) {
    if (!(await parts.listLoops()).some((one) => isSameAttachment(one, loop))) return;
    // udev and other programs open new devices for a moment.
    await parts.clock.sleep(100, scope.signal);
  }
  const holders = await findHolders(loop.node, parts.clock, scope, { exactPath: true });
  const processNames = holders.map((holder) => `${holder.pid} (${holder.command})`).join(', ');
  throw stillOpen(loop.file, processNames === '' ? 'a process that could not be found' : `process ${processNames}`);
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

function stillDetaching(image: string, loop: Loop): StowageError {
  return new StowageError(`${image} is still being detached: ${loop.node} is open`, {
    code: 'busy',
    reason: 'loop-detaching',
    action: `Retry in a moment. To see which process has it open: fuser -v ${loop.node}`,
  });
}
