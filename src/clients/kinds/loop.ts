import { createKeyedLock } from '#base/keyed-lock.ts';
import type { Scope } from '#base/log.ts';
import type { SourceOf } from '#core/model.ts';
import { requireMounting } from '#core/mount-errors.ts';
import type { Client, StagingTarget } from '#core/ports.ts';
import { listAttachedLoops, loopMounts } from '../mounter/attached-loops.ts';
import { lockImage } from '../mounter/image-lock.ts';
import { createLoopDevices } from '../mounter/loop-devices.ts';
import { createLoopFiles } from '../mounter/loop-files.ts';
import { readMountTable } from '../mounter/mountinfo.ts';
import { growCalls } from './grow-calls.ts';
import { growBlock, stageBlock, unstageBlock } from './loop-block.ts';
import { growFileSystem, stageFileSystem, unstageFileSystem } from './loop-filesystem.ts';
import { imageLoops, type LoopParts } from './loop-parts.ts';
import { loopSources } from './loop-sources.ts';

type LoopSource = SourceOf<'loop'>;
export type LoopClient = Client<'loop'> & Required<Pick<Client<'loop'>, 'grow'>>;

export type LoopClientOptions = Pick<LoopParts, 'mounter' | 'run' | 'clock'> &
  Partial<Pick<LoopParts, 'growCalls'>> & {
    /** Waits for programs that a killed Stowage left running. */
    readonly waitForOrphans?: (scope: Scope) => Promise<void>;
  };

/** Mounts an image file of this node through a loop device: the file system in it, or the device itself. */
export function createLoopClient(options: LoopClientOptions): LoopClient {
  const { clock } = options;
  const parts: LoopParts = {
    growCalls,
    ...options,
    readTable: readMountTable,
    listLoops: listAttachedLoops,
    ...createLoopFiles(clock),
    loopDevices: createLoopDevices(clock),
  };
  const images = createKeyedLock();

  /** Runs one call at a time for an image, since two would attach it twice. `lockImage` excludes other processes. */
  const exclusively =
    (work: (source: LoopSource, at: string, scope: Scope) => Promise<void>) =>
    async (source: LoopSource, { path: at }: StagingTarget, scope: Scope): Promise<void> => {
      requireMounting(parts.mounter);
      using _held = await images.hold([source.path], scope.signal);
      await work(source, at, scope);
    };

  return {
    kind: 'loop',
    nodeLocal: true,
    outlivesMount: true,
    sourceFixedWhileStaged: false,
    ...loopSources,
    stage: exclusively(async ({ path, filesystem, readOnly }, at, scope) => {
      await using locked = await lockImage(path, clock, scope.signal);
      const lockedParts = { ...parts, lockDescriptor: locked?.fd };
      if (filesystem === undefined) await stageBlock(lockedParts, path, readOnly === true, at, scope);
      else await stageFileSystem(lockedParts, path, filesystem, at, scope);
    }),
    unstage: exclusively(async ({ path, filesystem }, at, scope) => {
      if (filesystem === undefined) await unstageBlock(parts, path, at, scope);
      else await unstageFileSystem(parts, path, at, scope);
    }),
    mountsOf: async (source, _target, scope) => {
      await options.waitForOrphans?.(scope);
      const table = await parts.readTable();
      const loops = await imageLoops(parts, source.path);
      return loops.flatMap((loop) => {
        const places = loopMounts(loop, table).map(({ at }) => at);
        // A device that an administrator attached but did not mount is in use, too.
        return places.length === 0 ? [loop.node] : places;
      });
    },
    grow: exclusively(async ({ path, filesystem }, at, scope) => {
      if (filesystem === undefined) await growBlock(parts, path, at, scope);
      else await growFileSystem(parts, path, filesystem, at, scope);
    }),
  };
}
