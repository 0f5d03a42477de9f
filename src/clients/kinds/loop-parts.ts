import { lstat, readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Mounter } from '#core/ports.ts';
import { type attachedLoops, isNodeOf, isSameAttachment, type Loop, mountsOf } from '../mounter/attached-loops.ts';
import { keptName } from '../mounter/loop-calls.ts';
import type { HeldLoop, LoopDevices } from '../mounter/loop-devices.ts';
import type { LoopFiles } from '../mounter/loop-files.ts';
import { type MountEntry, type MountTable, same } from '../mounter/mountinfo.ts';
import { located, unlessMissing } from '../mounter/paths.ts';
import type { Run } from '../mounter/run-program.ts';
import type { GrowCalls } from './grow-calls.ts';
import { keepsBeingRenamed, noLoopDevice, stillMounted, stillStacked } from './loop-errors.ts';

const mostRenames = 5;

export interface LoopParts extends LoopFiles {
  readonly mounter: Mounter;
  readonly run: Run;
  readonly clock: Clock;
  readonly readTable: () => Promise<MountTable>;
  readonly loops: typeof attachedLoops;
  readonly loopDevices: LoopDevices;
  readonly growCalls: GrowCalls;
  /** The descriptor through which this call holds the lock of the image. */
  readonly lockedBy?: number | undefined;
}

/** The devices whose backing file is the image. */
export const loopsOn = async (parts: LoopParts, image: string): Promise<readonly Loop[]> =>
  await parts.loopsWith(image, await parts.loops());

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
 * short. If the file system below does not support it, nothing changes.
 */
export async function useDirectIo(parts: LoopParts, loop: Loop, scope: Scope): Promise<void> {
  if ((await readFile(`/sys/block/${loop.name}/loop/dio`, 'utf8').catch(() => '')).trim() === '1') return;
  if (!(await parts.loopDevices.useDirectIo(loop, scope)))
    scope.log.debug('no direct I/O on this loop device', { loop: loop.node, file: loop.file });
}

/** Unmounting the stage while copies of it stay mounted would leave the device attached and hide its users. */
export function refuseOtherMounts(loop: Loop, there: MountEntry, table: MountTable): void {
  if (loop.stacked) throw stillStacked(loop);
  const stage = table.place(there);
  const others = mountsOf(loop, table).filter((entry) => {
    const on = table.place(entry);
    // Propagation usually unmounts such a copy together with the stage. If not, `detachUnused` refuses it, after the stage is unmounted.
    return on === undefined || !same(on, stage);
  });
  if (others.length > 0) throw stillMounted(loop.file, places(others));
}

interface VolumeLoops {
  /** Devices of any file. */
  readonly all: readonly Loop[];
  /** Devices of the image. */
  readonly present: readonly Loop[];
  /** Devices of deleted images that had its path. */
  readonly deleted: readonly Loop[];
}

async function loopsEverOn(parts: LoopParts, path: string): Promise<VolumeLoops> {
  const all = await parts.loops();
  // Without devices there is no need to access the image's disk, which may have stopped answering.
  if (all.length === 0) return { all, present: [], deleted: [] };
  const image = (await located(path)) ?? path;
  const deleted = all.filter((loop) => loop.deleted && loop.file === image);
  return { all, present: await parts.loopsWith(image, all), deleted };
}

/**
 * Returns the device whose node is bound at the stage, if it belongs to the volume. The path does not tell, because the image may have been
 * renamed. The device number does not tell either, because another program may have reused it.
 */
export async function loopShown(parts: LoopParts, path: string, there: MountEntry): Promise<Loop | undefined> {
  const { all, present, deleted } = await loopsEverOn(parts, path);
  const known = [...present, ...deleted].find((loop) => isNodeOf(loop, there));
  const loop = known ?? all.find((one) => isNodeOf(one, there));
  if (loop === undefined || known !== undefined) return known;
  const image = keptName((await located(path)) ?? path);
  // The kernel truncates longer paths, so the path of another volume of the store can begin like ours.
  if (keptName(loop.file) === image) return undefined;
  return (await parts.fileOf(loop))?.attachedAs === image ? loop : undefined;
}

/** Detaches the devices of the file that are neither mounted nor stacked. */
export async function detachIdle(parts: LoopParts, path: string, scope: Scope): Promise<void> {
  const { present, deleted } = await loopsEverOn(parts, path);
  await detachIdleOf(parts, [...present, ...deleted], scope);
}

/**
 * The same after the stage is unmounted. Returns the devices that it detached. Throws 'in-use' if a device of the volume is mounted, or something is stacked
 * on it. Such a device stays attached: a bind does not hold it open, and after a detach its number could become another file's.
 */
export async function detachUnused(
  parts: LoopParts,
  path: string,
  scope: Scope,
  shown?: Loop,
): Promise<readonly Loop[]> {
  const { all, present, deleted } = await loopsEverOn(parts, path);
  // If the path has an image again, the deleted one belonged to another volume. Do not wait for its users.
  const isReplaced = deleted.length > 0 && (await unlessMissing(lstat(path))) !== undefined;
  const wasShown = all.filter((loop) => shown !== undefined && isSameAttachment(loop, shown));
  const own = new Set([...present, ...wasShown, ...(isReplaced ? [] : deleted)]);
  const { idle, used } = await detachIdleOf(parts, [...own], scope);
  const others = deleted.filter((loop) => !own.has(loop));
  await detachIdleOf(parts, others, scope);
  const [first] = used;
  if (first?.loop.stacked === true) throw stillStacked(first.loop);
  if (first !== undefined) throw stillMounted(first.loop.file, places(first.at));
  return idle;
}

interface Used {
  readonly loop: Loop;
  readonly at: readonly MountEntry[];
}

async function detachIdleOf(
  parts: LoopParts,
  loops: readonly Loop[],
  scope: Scope,
): Promise<{ readonly idle: readonly Loop[]; readonly used: readonly Used[] }> {
  if (loops.length === 0) return { idle: [], used: [] };
  const table = await parts.readTable();
  const all = loops.map((loop) => ({ loop, at: mountsOf(loop, table) }));
  const used = all.filter(({ loop, at }) => loop.stacked || at.length > 0);
  const idle = all.filter((one) => !used.includes(one)).map(({ loop }) => loop);
  for (const loop of idle) await detachRenamed(parts, loop, scope);
  return { idle, used };
}

/** `detach` compares the path of the file, so it returns false after a rename. Then read the path again and retry. */
async function detachRenamed(parts: LoopParts, seen: Loop, scope: Scope): Promise<void> {
  let loop: Loop | undefined = seen;
  for (let attempt = 0; loop !== undefined && attempt < mostRenames; attempt++) {
    if (await parts.loopDevices.detach(loop, scope)) return;
    loop = (await parts.loops()).find((one) => isSameAttachment(one, seen));
  }
  if (loop !== undefined) throw keepsBeingRenamed(loop);
}

const places = (entries: readonly MountEntry[]): readonly string[] => entries.map(({ at }) => at);
