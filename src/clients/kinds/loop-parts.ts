import { readFile } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import type { Mounter } from '#core/ports.ts';
import type { HeldLoop, LoopDevices } from '../mounter/loop-devices.ts';
import type { LoopsWith } from '../mounter/loop-files.ts';
import { type attachedLoops, type Loop, mountsOf } from '../mounter/loops.ts';
import { type MountEntry, type MountTable, same } from '../mounter/mountinfo.ts';
import { located } from '../mounter/paths.ts';
import type { Run } from '../mounter/run.ts';
import type { GrowCalls } from './grow-calls.ts';
import { noLoopDevice, stillMounted } from './loop-errors.ts';

export interface LoopParts {
  readonly mounter: Mounter;
  readonly run: Run;
  readonly clock: Clock;
  readonly readTable: () => Promise<MountTable>;
  readonly loops: typeof attachedLoops;
  readonly loopsWith: LoopsWith;
  readonly loopDevices: LoopDevices;
  readonly growCalls: GrowCalls;
  /** The descriptor of the image that this call has locked it by. */
  readonly lockedBy?: number | undefined;
}

/** The devices that have this very file behind them. */
export const loopsOn = async (parts: LoopParts, image: string): Promise<readonly Loop[]> =>
  await parts.loopsWith(image, await parts.loops());

/** A device of its own for the image. */
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
 * Without it the data are cached twice, and a loop device on a file of a user-space file system can deadlock when
 * memory runs short. Where the file system below cannot do it, it stays as it is.
 */
export async function useDirectIo(parts: LoopParts, loop: Loop, scope: Scope): Promise<void> {
  if ((await readFile(`/sys/block/${loop.name}/loop/dio`, 'utf8').catch(() => '')).trim() === '1') return;
  if (!(await parts.loopDevices.useDirectIo(loop, scope)))
    scope.log.debug('no direct I/O on this loop device', { loop: loop.node, file: loop.file });
}

/** Taking the stage away under a mount made of it would leave the device attached, with its users unseen. */
export function refuseOtherMounts(loop: Loop, there: MountEntry, table: MountTable): void {
  const stage = table.place(there);
  const others = mountsOf(loop, table).filter((entry) => {
    const on = table.place(entry);
    // Where propagation has copied it to, it goes away together with this one.
    return on === undefined || !same(on, stage);
  });
  if (others.length > 0)
    throw stillMounted(
      loop.file,
      others.map((entry) => entry.at),
    );
}

/** The devices with the file behind them, whatever the file's fate. */
export async function loopsEverOn(parts: LoopParts, path: string): Promise<readonly Loop[]> {
  const image = (await located(path)) ?? path;
  const all = await parts.loops();
  return [...(await parts.loopsWith(image, all)), ...all.filter(({ file, deleted }) => deleted && file === image)];
}

/** What is attached to the file and not mounted any more. Gives those it had to let go. */
export async function detachIdle(parts: LoopParts, path: string, scope: Scope): Promise<readonly Loop[]> {
  const loops = (await loopsEverOn(parts, path)).filter(({ stacked }) => !stacked);
  if (loops.length === 0) return [];
  const table = await parts.readTable();
  const idle = loops.filter((loop) => mountsOf(loop, table).length === 0);
  for (const loop of idle) await parts.loopDevices.detach(loop, scope);
  return idle;
}
