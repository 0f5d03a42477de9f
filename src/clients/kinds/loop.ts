import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import type { Source } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client } from '#core/ports.ts';
import { lockImage } from '../mounter/image-file.ts';
import { createLoopDevices } from '../mounter/loop-devices.ts';
import { createLoopFiles } from '../mounter/loop-files.ts';
import { attachedLoops } from '../mounter/loops.ts';
import { readMountTable } from '../mounter/mountinfo.ts';
import { growCalls } from './grow-calls.ts';
import { growBlock, stageBlock, unstageBlock } from './loop-block.ts';
import { growFileSystem, stageFileSystem, unstageFileSystem } from './loop-filesystem.ts';
import type { LoopParts } from './loop-parts.ts';

type LoopSource = Extract<Source, { kind: 'loop' }>;

export type LoopClientOptions = Pick<LoopParts, 'mounter' | 'run' | 'clock'> & Partial<Pick<LoopParts, 'growCalls'>>;

/** An image file of this node: a loop device, and the file system in it or the device itself. */
export function createLoopClient(options: LoopClientOptions): Client<'loop'> {
  const { clock } = options;
  const parts: LoopParts = {
    ...{ growCalls, ...options, readTable: readMountTable, loops: attachedLoops },
    ...{ ...createLoopFiles(clock), loopDevices: createLoopDevices(clock) },
  };
  const images = createKeyedLock();

  /** One call at a time for an image: two would attach it twice. `lockImage` keeps other processes from that. */
  const alone =
    (work: (source: LoopSource, at: string, scope: Scope) => Promise<void>) =>
    async (source: LoopSource, at: string, scope: Scope): Promise<void> => {
      requireMounting(parts.mounter);
      using _held = await images.hold([source.path], scope.signal);
      await work(source, at, scope);
    };

  return {
    kind: 'loop',
    stage: alone(async ({ path, filesystem, readOnly }, at, scope) => {
      await using locked = await lockImage(path, clock, scope.signal);
      const own = { ...parts, lockedBy: locked?.fd };
      if (filesystem === undefined) await stageBlock(own, path, readOnly === true, at, scope);
      else await stageFileSystem(own, path, filesystem, at, scope);
    }),
    unstage: alone(async ({ path, filesystem }, at, scope) => {
      if (filesystem === undefined) await unstageBlock(parts, path, at, scope);
      else await unstageFileSystem(parts, path, at, scope);
    }),
    grow: alone(async ({ path, filesystem }, at, scope) => {
      if (filesystem === undefined) await growBlock(parts, path, at, scope);
      else await growFileSystem(parts, path, filesystem, at, scope);
    }),
  };
}
