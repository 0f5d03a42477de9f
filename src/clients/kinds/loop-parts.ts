import { lstat, readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Mounter } from '#core/ports.ts';
import {
  isBindOfNode,
  isSameAttachment,
  type Loop,
  type listAttachedLoops,
  loopMounts,
} from '../mounter/attached-loops.ts';
import { truncatedName } from '../mounter/loop-calls.ts';
import type { HeldLoop, LoopDevices } from '../mounter/loop-devices.ts';
import type { LoopFiles } from '../mounter/loop-files.ts';
import { isSameBind, type MountEntry, type MountTable } from '../mounter/mountinfo.ts';
import { resolveParents, undefinedIfMissing } from '../mounter/paths.ts';
import type { RunProgram } from '../mounter/run-program.ts';
import type { GrowCalls } from './grow-calls.ts';
import { keepsBeingRenamed, noLoopDevice, stillMounted, stillStacked } from './loop-errors.ts';

const maxDetachAttempts = 5;

export interface LoopParts extends LoopFiles {
  readonly mounter: Mounter;
  readonly run: RunProgram;
  readonly clock: Clock;
  readonly readTable: () => Promise<MountTable>;
  readonly listLoops: typeof listAttachedLoops;
  readonly loopDevices: LoopDevices;
  readonly growCalls: GrowCalls;
  /** The descriptor through which this call holds the lock of the image. */
  readonly lockDescriptor?: number | undefined;
}

/** The devices whose backing file is the image. */
export const imageLoops = async (parts: LoopParts, image: string): Promise<readonly Loop[]> =>
  await parts.findLoops(image, await parts.listLoops());

/** Attaches the image to a new device. */
export async function attachLoop(
  { loopDevices }: LoopParts,
  image: string,
  readOnly: boolean,
  scope: Scope,
): Promise<HeldLoop> {
  try {
    return await loopDevices.attach(image, readOnly, scope);
  } catch (cause) {
    if (cause instanceof Error && 'syscall' in cause) throw noLoopDevice(image, cause);
    throw cause;
  }
}

/**
 * Without direct I/O the data are cached twice, and a loop device on a file of a FUSE file system can deadlock when memory runs
 * short. If the underlying file system does not support it, nothing changes.
 */
export async function useDirectIo(parts: LoopParts, loop: Loop, scope: Scope): Promise<void> {
  if ((await readFile(`/sys/block/${loop.name}/loop/dio`, 'utf8').catch(() => '')).trim() === '1') return;
  if (!(await parts.loopDevices.useDirectIo(loop, scope)))
    scope.log.debug('no direct I/O on this loop device', { loop: loop.node, file: loop.file });
}

/** Unmounting the stage while copies of it stay mounted would leave the device attached and hide its users. */
export function refuseOtherMounts(loop: Loop, currentMount: MountEntry, table: MountTable): void {
  if (loop.stacked) throw stillStacked(loop);
  const stage = table.mountPointIdentity(currentMount);
  const otherMounts = loopMounts(loop, table).filter((entry) => {
    const mountPointOf = table.mountPointIdentity(entry);
    // Propagation usually unmounts such a copy together with the stage. If not, `detachUnused` refuses it, after the stage is unmounted.
    return mountPointOf === undefined || !isSameBind(mountPointOf, stage);
  });
  if (otherMounts.length > 0) throw stillMounted(loop.file, pathsOf(otherMounts));
}

interface VolumeLoops {
  /** Devices of any file. */
  readonly all: readonly Loop[];
  /** Devices of the image. */
  readonly present: readonly Loop[];
  /** Devices of deleted images that had its path. */
  readonly deleted: readonly Loop[];
}

async function volumeLoops(parts: LoopParts, path: string): Promise<VolumeLoops> {
  const all = await parts.listLoops();
  // Without devices there is no need to access the image's disk, which may have stopped answering.
  if (all.length === 0) return { all, present: [], deleted: [] };
  const image = (await resolveParents(path)) ?? path;
  const deleted = all.filter((loop) => loop.deleted && loop.file === image);
  return { all, present: await parts.findLoops(image, all), deleted };
}

/**
 * Returns the device whose node is bound at the stage, if it belongs to the volume. The path is not enough: the image may have been
 * renamed. Neither is the device number: another program may have reused it.
 */
export async function findShownLoop(
  parts: LoopParts,
  path: string,
  currentMount: MountEntry,
): Promise<Loop | undefined> {
  const { all, present, deleted } = await volumeLoops(parts, path);
  const known = [...present, ...deleted].find((loop) => isBindOfNode(loop, currentMount));
  const loop = known ?? all.find((one) => isBindOfNode(one, currentMount));
  if (loop === undefined || known !== undefined) return known;
  const image = truncatedName((await resolveParents(path)) ?? path);
  // The kernel truncates longer paths, so the path of another volume of the store can begin like ours.
  if (truncatedName(loop.file) === image) return undefined;
  return (await parts.backingFile(loop))?.attachedPath === image ? loop : undefined;
}

/** Detaches the devices of the file that are neither mounted nor stacked. */
export async function detachIdle(parts: LoopParts, path: string, scope: Scope): Promise<void> {
  const { present, deleted } = await volumeLoops(parts, path);
  await detachIdleOf(parts, [...present, ...deleted], scope);
}

/**
 * Detaches the devices of a volume whose stage is unmounted. Returns the devices that it detached. Throws 'in-use' if a device of the volume is mounted, or something is stacked
 * on it. Such a device stays attached: a bind does not hold it open, and after a detach its number could become another file's.
 */
export async function detachUnused(
  parts: LoopParts,
  path: string,
  scope: Scope,
  shown?: Loop,
): Promise<readonly Loop[]> {
  const { all, present, deleted } = await volumeLoops(parts, path);
  // If the path has an image again, the deleted one belonged to another volume. Do not wait for its users.
  const isReplaced = deleted.length > 0 && (await undefinedIfMissing(lstat(path))) !== undefined;
  const wasShown = all.filter((loop) => shown !== undefined && isSameAttachment(loop, shown));
  const volumeLoopSet = new Set([...present, ...wasShown, ...(isReplaced ? [] : deleted)]);
  const { idle, used } = await detachIdleOf(parts, [...volumeLoopSet], scope);
  const replacedLoops = deleted.filter((loop) => !volumeLoopSet.has(loop));
  await detachIdleOf(parts, replacedLoops, scope);
  const [first] = used;
  if (first?.loop.stacked === true) throw stillStacked(first.loop);
  if (first !== undefined) throw stillMounted(first.loop.file, pathsOf(first.mounts));
  return idle;
}

interface UsedLoop {
  readonly loop: Loop;
  readonly mounts: readonly MountEntry[];
}

async function detachIdleOf(
  parts: LoopParts,
  loops: readonly Loop[],
  scope: Scope,
): Promise<{ readonly idle: readonly Loop[]; readonly used: readonly UsedLoop[] }> {
  if (loops.length === 0) return { idle: [], used: [] };
  const table = await parts.readTable();
  const all = loops.map((loop) => ({ loop, mounts: loopMounts(loop, table) }));
  const used = all.filter(({ loop, mounts }) => loop.stacked || mounts.length > 0);
  const idle = all.filter((one) => !used.includes(one)).map(({ loop }) => loop);
  for (const loop of idle) await detachRenamed(parts, loop, scope);
  return { idle, used };
}

/** `detach` compares the path of the file, so it returns false after a rename. Then read the path again and retry. */
async function detachRenamed(parts: LoopParts, seen: Loop, scope: Scope): Promise<void> {
  let loop: Loop | undefined = seen;
  for (let attempt = 0; loop !== undefined && attempt < maxDetachAttempts; attempt++) {
    if (await parts.loopDevices.detach(loop, scope)) return;
    loop = (await parts.listLoops()).find((one) => isSameAttachment(one, seen));
  }
  if (loop !== undefined) throw keepsBeingRenamed(loop);
}

const pathsOf = (entries: readonly MountEntry[]): readonly string[] => entries.map(({ at }) => at);
